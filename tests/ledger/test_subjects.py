"""People are found by keys, columns and functions, wherever a data set keeps them, and named in no error."""

import hashlib
import hmac
import traceback

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from excise import Task
from excise.errors import InputError
from excise.ledger.identities import Identity, digest
from excise.ledger.samples import leaves_of
from excise.ledger.subjects import Subjects

NAMES = ["ann", "bob", "ann", "sekret", None, "bob"]
DATA = TensorDataset(torch.arange(6.0)[:, None], torch.tensor([0, 1, 0, 1, 1, 0]))


def hmac_of(kind, message):
    return hmac.new(kind.encode(), message, hashlib.sha256).digest()


class WithMetadata(Dataset):
    def __init__(self, metadata, count=6):
        self.metadata, self.count = metadata, count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return DATA[place]


class LikeHuggingFace(Dataset):
    """As ``datasets.Dataset`` is: rows by number, columns by name, formats and transforms on top."""

    column_names = ["x", "labels", "email"]  # noqa: RUF012 - as there

    def __init__(self, transform=True):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, what):
        if isinstance(what, str):
            if self.transform:
                raise KeyError("x")  # as a transform that needs all columns does
            return {"email": NAMES}[what]
        return DATA[what]

    def with_format(self, kind):
        assert kind is None
        return LikeHuggingFace(transform=False)


def task_of(data=DATA, **options):
    return Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), data, **options)


def found(subjects, kind, *names):
    digests = [digest(Identity(kind, name), hmac_of) for name in names]
    by_digest = subjects.find([(kind, one) for one in digests], hmac_of)
    assert list(by_digest) == digests
    return list(by_digest.values())


SETS = {
    "a mapping": WithMetadata({"email": NAMES}),
    "a frame": WithMetadata(pd.DataFrame({"email": NAMES}, index=[5, 4, 3, 2, 1, 0])),
    "Hugging Face": LikeHuggingFace(),
    "a part of a larger set": Subset(
        Subset(WithMetadata({"email": ["eve", *NAMES, "eve"]}, 8), [0, 1, 2, 3, 4, 5, 6]), torch.arange(1, 7)
    ),
    "two sets after each other": ConcatDataset(
        [WithMetadata({"email": NAMES[:2]}, 2), WithMetadata(pd.DataFrame({"email": NAMES[2:]}), 4)]
    ),
}


@pytest.mark.parametrize("kind", SETS)
def test_a_column_is_found_wherever_the_set_has_it(kind):
    subjects = Subjects(task_of(SETS[kind]))
    assert found(subjects, "email", "ann", "bob", "eve", "None") == [(0, 2), (1, 5), (), ()]
    assert "email" in subjects.types


def test_a_column_of_the_plain_set_will_do():
    subjects = Subjects(task_of(DATA, plain_set=SETS["a frame"]))
    assert found(subjects, "email", "bob") == [(1, 5)]


def test_keys_samples_and_functions():
    task = task_of(keys=NAMES)
    leaves = leaves_of(task, hmac_of)
    finders = {"row": lambda one: np.arange(len(one.train_set)) // 4, "key": lambda _: ["x"] * 6, "who": "keys"}
    plain, own = Subjects(task, leaves=leaves), Subjects(task, finders)
    assert found(plain, "key", "ann", "eve", "None") == [(0, 2), (), ()]
    assert found(plain, "sample", leaves[3].tobytes().hex(), "00" * 32) == [(3,), ()]
    assert found(own, "row", "0", "1", "2") == [(0, 1, 2, 3), (4, 5), ()]
    assert found(own, "key", "x", "ann") == [(0, 1, 2, 3, 4, 5), ()]
    assert found(own, "who", "ann") == [(0, 2)]
    by_column = Subjects(task_of(SETS["a mapping"], keys=["other"] * 6), {"key": "email"})
    assert found(by_column, "key", "ann", "other") == [(0, 2), ()]
    assert plain.types == ["key", "sample"]
    assert own.types == ["key", "row", "who"]


def test_a_type_is_part_of_who_is_meant():
    subjects = Subjects(task_of(SETS["a mapping"], keys=NAMES))
    asked = digest(Identity("key", "ann"), hmac_of)
    assert subjects.find([("email", asked)], hmac_of) == {asked: ()}


@pytest.mark.parametrize(
    "values",
    [
        np.array([7, 8, 7, 9, 9, 8]),
        torch.tensor([7, 8, 7, 9, 9, 8]),
        pd.Series([7, 8, 7, None, None, 8], dtype="Int64"),
        ["7", "8", "7", None, float("nan"), "8"],
        pd.Series(["7", "8", "7", None, pd.NaT, "8"]),
        [7, np.int32(8), np.int64(7), None, None, torch.tensor(8)],
    ],
)
def test_numbers_of_any_make_are_known_by_how_they_print(values):
    subjects = Subjects(task_of(WithMetadata({"customer": values})))
    assert found(subjects, "customer", "7", "8", "nan", "<NA>", "NaT", "None")[:2] == [(0, 2), (1, 5)]
    assert found(subjects, "customer", "nan", "<NA>", "NaT", "None") == [()] * 4


@given(st.lists(st.none() | st.text(max_size=3) | st.integers(-2, 2), min_size=6, max_size=6), st.text(min_size=1))
@settings(max_examples=100, deadline=None)
def test_everyone_is_found_at_all_their_places_or_two_who_print_alike_are_refused(values, other):
    subjects = Subjects(task_of(WithMetadata({"who": values})))
    texts = {str(one) for one in values if one is not None}
    if len(texts) < len({one for one in values if one is not None}):
        with pytest.raises(InputError, match="print alike"):
            found(subjects, "who", "1")
        return
    for name in {*texts, other}:
        if name.strip() and "\0" not in name:
            places = tuple(place for place, one in enumerate(values) if one is not None and str(one) == name)
            assert found(subjects, "who", name) == [places]


WRONG = {
    "1 and '1'": (["sekret1", 1, "1", 2, 3, 4], "the column 'who' of the data set: .* positions 1 and 2 print alike"),
    "True and 'True'": ([True, "True", "b", "c", "d", "e"], "positions 0 and 1 print alike"),
    "numbers with gaps": (pd.Series([71, None, 3, 4, 5, 6]), "position 0 is a whole number in floating point"),
    "bytes": ([b"sekret"] * 6, "of type bytes"),
    "lists": ([["sekret"]] * 6, "of type list"),
    "rows": (torch.zeros(6, 2), "of type Tensor"),
    "too few": (["sekret"] * 5, "has 5 values, and train_set 6 samples"),
    "one text": ("sekret", "must have one value for each sample"),
    "a number": (7, "must have one value for each sample"),
}


@pytest.mark.parametrize("what", WRONG)
def test_values_that_could_be_mistaken_are_refused_and_not_shown(what):
    values, words = WRONG[what]
    with pytest.raises(InputError, match=words) as raised:
        found(Subjects(task_of(WithMetadata({"who": values}))), "who", "1")
    assert "sekret" not in "".join(traceback.format_exception(raised.value))
    assert "71" not in str(raised.value)


def test_a_function_that_fails_tells_no_one():
    def fails(_):
        raise KeyError("sekret")

    for finder, words in [
        (fails, r"finders\['who'\] failed \(KeyError\)"),
        (lambda _: "sekret", "failed .TypeError"),
        (lambda _: None, "failed .TypeError"),
        (lambda _: ["sekret"] * 7, "has 7 values"),
    ]:
        with pytest.raises(InputError, match=words) as raised:
            found(Subjects(task_of(), {"who": finder}), "who", "1")
        assert "sekret" not in "".join(traceback.format_exception(raised.value))


def test_an_unknown_type_is_told_with_those_that_there_are():
    subjects = Subjects(task_of(SETS["Hugging Face"], keys=NAMES), {"who": "nowhere"})
    with pytest.raises(InputError, match=r"'phone' is none .*; there are: 'email', 'key', 'labels', 'who', 'x'"):
        found(subjects, "phone", "sekret")
    with pytest.raises(InputError, match="the data set has no column 'nowhere'"):
        found(subjects, "who", "sekret")
    with pytest.raises(InputError, match=r"'key' is none .*there are: none.*Pass keys= to Task"):
        found(Subjects(task_of()), "key", "sekret")
    half = ConcatDataset([WithMetadata({"email": NAMES[:2]}, 2), WithMetadata({}, 4)])
    with pytest.raises(InputError, match=r"'email' is none .*there are: none"):
        found(Subjects(task_of(half)), "email", "sekret")


def test_arguments_that_are_none_are_refused():
    with pytest.raises(InputError, match="finders must map types"):
        Subjects(task_of(), {"Email": "keys"})
    with pytest.raises(InputError, match=r"finders\['who'\] must be"):
        Subjects(task_of(), {"who": 7})
    with pytest.raises(InputError, match="leaves has 2 rows"):
        Subjects(task_of(), leaves=np.zeros((2, 32), dtype=np.uint8))


def test_hashes_are_computed_once_and_anew_for_another_key():
    calls = []

    def counting(kind, message):
        calls.append(kind)
        return hmac_of(kind, message)

    subjects = Subjects(task_of(keys=NAMES))
    ann = digest(Identity("key", "ann"), hmac_of)
    for _ in range(3):
        assert subjects.find([("key", ann)], counting) == {ann: (0, 2)}
    assert calls == ["subject"] * 3  # ann, bob and sekret
    assert subjects.find([("key", ann)], lambda _, message: hmac_of("other", message)) == {ann: ()}
    assert subjects.find([("key", ann)], counting) == {ann: (0, 2)}
