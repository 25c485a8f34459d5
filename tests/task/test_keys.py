"""Samples by names of the user's own: several for a key, and nothing that is named wrongly is deleted."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task
from excise.task.keys import group_by_key, ids_of_keys, keys_from_text


def task(keys):
    return Task(
        nn.Linear(1, 2), nn.CrossEntropyLoss(), TensorDataset(torch.zeros(4, 1), torch.arange(4) % 2), keys=keys
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_all_samples_of_the_keys_and_no_others(keys, data):
    asked = data.draw(st.lists(st.sampled_from(sorted(set(keys))), min_size=1, unique=True))
    found = ids_of_keys(asked, group_by_key(keys, len(keys)))
    assert found == [place for place, key in enumerate(keys) if key in asked]


@pytest.mark.parametrize("keys", [[7, 8, 7, 9], np.array([7, 8, 7, 9]), torch.tensor([7, 8, 7, 9])])
def test_keys_are_found_whatever_they_come_in(keys):
    assert task(keys).ids_of([7]) == [0, 2]
    assert task(keys).ids_of(np.array([9, 8])) == [1, 3]


def test_keys_of_a_data_frame():
    pandas = pytest.importorskip("pandas")
    assert task(pandas.Series(["ann", "bob", "ann", "cy"], index=[9, 8, 7, 6])).ids_of(["ann"]) == [0, 2]


def test_tuples_are_keys_too():
    assert task([("a", 1), ("a", 2), ("b", 1), ("a", 1)]).ids_of([("a", 1)]) == [0, 3]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["anna"], r"'anna', which no sample of train_set has\. Did you mean 'ann'\?"),
        ([0], "0, which no sample"),
        ([], "names no one"),
        ("ann", r"not the text 'ann'; pass \['ann'\]"),
        (["ann", "ann"], "'ann' more than once"),
    ],
)
def test_wrong_keys_are_named(asked, message):
    with pytest.raises(InputError, match=message):
        task(["ann", "bob", "ann", "cy"]).ids_of(asked)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "b"], "keys has 2 entries, but train_set has 4 samples"),
        ("abcd", "one name for each sample"),
        (5, "one name for each sample"),
        ([[1], [2], [3], [4]], r"\[1\] \(a list\) at position 0"),
    ],
)
def test_keys_that_do_not_fit_are_refused_at_once(keys, message):
    with pytest.raises(InputError, match=message):
        task(keys)


def test_a_task_without_keys_says_so():
    with pytest.raises(InputError, match="pass keys= to Task"):
        task(None).ids_of(["ann"])


def test_words_on_a_command_line():
    known = group_by_key([17, 42, "x"], 3)
    assert keys_from_text(["42", "x"], known) == [42, "x"]
    with pytest.raises(InputError, match=r"'43', which no sample"):
        keys_from_text(["43"], known)
    with pytest.raises(InputError, match="could mean 17 or '17'"):
        keys_from_text(["17"], group_by_key([17, "17"], 2))
