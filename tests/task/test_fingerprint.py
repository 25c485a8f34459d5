"""A training set is recognised; one that was re-ordered, shortened or exchanged is told apart, in words."""

import hashlib
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from excise import InputError, Task
from excise.task.fingerprint import Fingerprint

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])


def fingerprint(order=range(6), inputs=X, targets=Y):
    order = list(order)
    return Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), TensorDataset(inputs[order], targets[order])).fingerprint


@given(st.permutations(range(6)))
@settings(max_examples=30)
def test_order_is_all_that_differs_in_a_permutation(order):
    found, plain = fingerprint(order), fingerprint()
    assert found.unordered == plain.unordered
    assert (found.ordered == plain.ordered) == (list(order) == list(range(6)))


def plainly(task):
    """The formula, written out: a hash of the samples' hashes, and their sum."""
    ordered, total = hashlib.sha256(), 0
    for place in range(len(task.train_set)):
        one = hashlib.sha256()
        for tensor in task.batch([place]):
            one.update(f"({tensor.dtype}, {tuple(tensor.shape)})".encode() + tensor.numpy().tobytes())
        ordered.update(one.digest())
        total += int(one.hexdigest(), 16)
    keys = None
    if task.keys is not None:
        listed = list(task.keys)
        places = {key: [i for i, one in enumerate(listed) if one == key] for key in dict.fromkeys(listed)}
        keys = hashlib.sha256("".join(str((str(key), of)) for key, of in places.items()).encode()).hexdigest()
    return Fingerprint(len(task.train_set), ordered.hexdigest(), f"{total % 2**256:064x}", keys)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_values_are_those_of_the_formula(rows, keyed):
    keys = [f"k{row % 3}" for row in rows] if keyed else None
    task = Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), TensorDataset(X[rows], Y[rows]), keys=keys)
    assert task.fingerprint == plainly(task)
    assert hashlib.sha256(task.sample_digests).hexdigest() == task.fingerprint.ordered


def test_the_values_are_those_of_earlier_versions():
    found = fingerprint()  # kept models and saved records rest on it
    assert found.ordered == "ed16d530d226b2cef2c6017836ec619eb834815c11f415519444de6524e7868c"
    assert found.unordered == "a2290d0d4b75dc1db95c7d149de6cb0b9b80c43028f825715a5768698fafadcb"


def test_inputs_and_targets_both_count():
    changed = X.clone()
    changed[3, 1] += 1e-6
    labels = Y.clone()
    labels[2] = 1
    for other in (fingerprint(inputs=changed), fingerprint(targets=labels)):
        assert other.unordered != fingerprint().unordered


def test_a_list_of_samples_is_the_same_as_their_tensors():
    pairs = [(X[i], Y[i]) for i in range(6)]
    assert Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), pairs).fingerprint == fingerprint()


def test_how_another_set_differs_is_said():
    mine = fingerprint()
    mine.require_same(fingerprint(), "w.safetensors")
    with pytest.raises(InputError, match=r"w\.safetensors is of .* the same samples in another order"):
        mine.require_same(fingerprint([1, 0, 2, 3, 4, 5]), "w.safetensors")
    with pytest.raises(InputError, match="a training set of 5 samples, and train_set has 6"):
        mine.require_same(fingerprint(range(5)), "w")
    with pytest.raises(InputError, match="of another training set"):
        mine.require_same(fingerprint(inputs=X + 1), "w")


class Augmented(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, place):
        return X[place] + torch.rand(2), Y[place]


def test_a_set_that_changes_at_each_reading_has_none():
    task = Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), Augmented())
    assert task.fingerprint == Fingerprint(6, None, None)
    with pytest.raises(InputError, match=r"other values at each reading.*without augmentation"):
        task.fingerprint.require_same(fingerprint(), "w")


def test_it_is_read_once():
    class Counting(list):
        reads = 0

        def __getitem__(self, place):
            Counting.reads += 1
            return super().__getitem__(place)

    task = Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), Counting((X[i], Y[i]) for i in range(6)))
    first = task.fingerprint
    assert Counting.reads == 6 + 4  # the first four twice
    assert task.with_model(nn.Linear(2, 2)).fingerprint == first
    assert task.with_model(nn.Linear(2, 2)).sample_digests is task.sample_digests
    assert Counting.reads == 10


def test_what_was_saved_is_read_back_or_refused():
    assert Fingerprint.from_dict(asdict(fingerprint()), "w") == fingerprint()
    for damaged in (None, [], {}, {**asdict(fingerprint()), "samples": "6"}, {**asdict(fingerprint()), "more": 1}):
        with pytest.raises(InputError, match="w has a damaged fingerprint"):
            Fingerprint.from_dict(damaged, "w")
