"""Leaves are the design's formula, and a training set is recognised with its forgotten rows, without, or with some."""

import hashlib
import hmac
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from excise import Task
from excise.errors import InputError
from excise.ledger import samples
from excise.ledger.samples import bases_of, leaves_of, recognised

X, Y = torch.tensor([[0.0], [1.0], [0.0], [0.0], [1.0]]), torch.tensor([0, 1, 0, 0, 0])


def hmac_of(kind, message):
    return hmac.new(kind.encode(), message, hashlib.sha256).digest()


def task_of(keys=None, x=X, y=Y):
    return Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), TensorDataset(x, y), keys=keys)


def by_hand(x, y, key, number):
    content = hashlib.sha256(b"(torch.float32, (1, 1))" + np.float32(x).tobytes())
    content.update(b"(torch.int64, (1,))" + np.int64(y).tobytes())
    name = bytes(32) if key is None else hashlib.sha256(str(key).encode()).digest()
    return hmac.new(b"sample", content.digest() + name + number.to_bytes(8, "big"), hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [(None, [0, 0, 1, 2, 0]), (["a", "a", "b", "a", "b"], [0, 0, 0, 1, 0]), ([7, 7, None, "ü", None], [0] * 5)],
)
def test_a_leaf_is_the_keyed_hash_of_content_key_and_number(keys, numbers):
    found = leaves_of(task_of(keys), hmac_of)
    wanted = [by_hand(*X[i], Y[i], keys and keys[i], numbers[i]) for i in range(5)]
    assert found.shape == (5, 32)
    assert found.dtype == np.uint8
    assert [row.tobytes() for row in found] == wanted


def test_all_leaves_differ_and_neither_order_nor_key_of_the_ledger_is_all_the_same():
    first = leaves_of(task_of(), hmac_of)
    assert len({row.tobytes() for row in first}) == 5
    turned = leaves_of(task_of(x=X.flip(0), y=Y.flip(0)), hmac_of)
    assert {row.tobytes() for row in turned} == {row.tobytes() for row in first}
    other = leaves_of(task_of(), lambda kind, message: hmac_of("other " + kind, message))
    assert not {row.tobytes() for row in other} & {row.tobytes() for row in first}


class Counting(list):
    reads = 0

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


def test_the_set_is_read_once_for_leaves_and_fingerprint():
    data = Counting((X[i], Y[i]) for i in range(5))
    task = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
    leaves_of(task, hmac_of), bases_of(task), task.fingerprint
    assert data.reads == 5 + 4  # the first four twice


class Augmented(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, place):
        return X[place] + torch.rand(1), Y[place]


def test_a_set_that_changes_is_refused_unless_it_comes_without_augmentation():
    task = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), Augmented())
    with pytest.raises(InputError, match=r"other values at each reading.*plain_set="):
        leaves_of(task, hmac_of)
    plain = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), Augmented(), plain_set=TensorDataset(X, Y))
    assert np.array_equal(leaves_of(plain, hmac_of), leaves_of(task_of(), hmac_of))


# --- recognising -----------------------------------------------------------------------------------------------------


def bases_named(letters):
    return np.frombuffer("".join(letter * 64 for letter in letters).encode(), dtype=np.uint8).reshape(-1, 64)


def leaves_named(letters):
    """The leaves of a whole set, by its definition."""
    seen = Counter()
    found = []
    for letter in letters:
        message = letter.encode() * 64 + seen[letter].to_bytes(8, "big")
        found.append(hmac.new(b"sample", message, hashlib.sha256).digest())
        seen[letter] += 1
    return found


def recognise(present, whole, gone):
    """Of a set of letters, positions gone, what is there now."""
    leaves = leaves_named(whole)
    retained = {leaf for place, leaf in enumerate(leaves) if place not in gone}
    asked = []

    def is_retained(rows):
        asked.append(len(rows))
        found = {row.tobytes() for row in rows}
        return len(rows) == len(retained) and found == retained

    deleted = [leaves[place] for place in gone]
    found = recognised(bases_named(present), deleted, hmac_of, retained_count=len(retained), is_retained=is_retained)
    assert {row.tobytes() for row in found.retained} == retained
    return found, asked


@st.composite
def deletions(draw):
    whole = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9))
    gone = draw(st.lists(st.integers(0, len(whole) - 1), unique=True, max_size=len(whole) - 1))
    removed = draw(st.lists(st.sampled_from(gone), unique=True)) if gone else []
    return whole, gone, removed


@given(deletions())
@settings(max_examples=120, deadline=None)
def test_the_same_is_retained_whichever_forgotten_rows_were_taken_away(case):
    whole, gone, some = case
    leaves = leaves_named(whole)

    full, asked = recognise(whole, whole, gone)
    assert [row.tobytes() for row in full.leaves] == leaves
    assert full.forgotten.tolist() == sorted(gone)
    assert len(asked) == 1

    without, asked = recognise([one for place, one in enumerate(whole) if place not in gone], whole, gone)
    assert without.forgotten.tolist() == []
    assert [row.tobytes() for row in without.leaves] == [one for i, one in enumerate(leaves) if i not in gone]
    assert len(asked) == 1

    places = [place for place in range(len(whole)) if place not in some]
    partly, _ = recognise([whole[place] for place in places], whole, gone)
    told = [whole[places[place]] for place in partly.forgotten]
    assert sorted(told) == sorted(whole[place] for place in set(gone) - set(some))
    assert len({row.tobytes() for row in partly.leaves}) == len(places)


def test_a_twin_that_is_left_is_not_taken_for_the_one_that_went():
    found, _ = recognise("ab", "aab", [0])
    assert [row.tobytes() for row in found.leaves] == leaves_named("aab")[1:]
    found, _ = recognise("ab", "ab", [0])
    assert found.forgotten.tolist() == [0]


def test_some_rows_of_many_are_told_apart_by_the_first_guess_where_there_are_no_twins():
    letters = "abcdefghijklmnopqrstuvwxyz"
    found, asked = recognise(letters[10:], letters, range(20))
    assert found.forgotten.tolist() == list(range(10))
    assert asked == [6]


def test_a_twin_with_a_number_below_a_forgotten_one_needs_no_guess():
    found, asked = recognise("baa", "baaa", [0, 1, 3])  # the last was taken away: of two that are there one is retained
    assert found.forgotten.tolist() == [0, 1]
    assert asked == [1]


def test_what_can_not_be_told_apart_is_refused(monkeypatch):
    whole, gone, present = "aabbcc", [0, 2, 4], "aabcc"  # of each pair one is forgotten; one of these was taken away
    found, asked = recognise(present, whole, gone)
    assert found.forgotten.tolist() == [0, 3]
    assert asked == [3, 3]  # the first guess was that it is missing in the first pair
    monkeypatch.setattr(samples, "MOST_READINGS", 1)
    with pytest.raises(InputError, match="with all forgotten rows or without any"):
        recognise(present, whole, gone)


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ("abz", "not the ledger's"),  # another row in place of one
        ("abcz", "not the ledger's"),
        ("ab", "some that were never forgotten are missing"),
        ("aabcc", "others were added"),
        ("bbcc", "not the ledger's"),
        ("bcc", "not the ledger's"),
    ],
)
def test_another_set_is_refused(present, words):
    recognise("abc", "aabc", [1])
    with pytest.raises(InputError, match=words):
        recognise(present, "aabc", [1])


def test_without_deletions_any_change_is_seen():
    assert recognise("cab", "abc", [])[0].forgotten.tolist() == []  # leaves know no order
    for other in ("abd", "aab"):
        with pytest.raises(InputError, match="not the ledger's"):
            recognise(other, "abc", [])
