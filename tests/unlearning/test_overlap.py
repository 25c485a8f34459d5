"""Held-out samples that the model was trained on are noticed by their answers."""

import warnings
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from digit_network import digit_network
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from excise import InputError, NothingForgotten, Task, Unlearner
from excise.unlearning.overlap import OverlapWarning, is_among, warn_of_overlap


@pytest.fixture(scope="module")
def network():
    return digit_network(0)


def test_a_test_set_of_training_samples_is_said_to_be_one(network):
    for test_set in (network.train_set, Subset(network.train_set, range(0, 300, 2))):
        with pytest.warns(OverlapWarning, match="does test_set overlap train_set"), suppress(NothingForgotten):
            Unlearner(replace(network, test_set=test_set)).forget([3])


def test_a_proper_test_set_is_not(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverlapWarning)
        Unlearner(network).forget([3])


def test_a_part_that_is_in_a_large_set_shows():
    """Of 50,000 samples 4,000 were looked at, so that an eighth of the test set, all of it training data, is found."""
    known = torch.randn(50_000, generator=torch.Generator().manual_seed(0)).double()
    with pytest.warns(OverlapWarning, match="of which 4000 of 50000"):
        warn_of_overlap(known[:4000], known[torch.randperm(50_000)[:4000]], 50_000)


def test_rows_that_are_there_many_times_tell_nothing():
    few = torch.arange(10).double().repeat(100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_overlap(few, few, 1000)


def test_who_is_among_others_is_told_by_the_slow_way():
    one, others = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).double()
    one[::7] = others[:8] * (1 + 1e-8)
    slow = ((one[:, None] - others).abs() < 1e-6).any(1)
    assert torch.equal(is_among(one, others, 1e-6), slow)
    assert slow.sum() == 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def test_a_test_set_that_no_sample_can_be_named_of_is_refused(network):
    for stream in (Stream(), DataLoader(network.test_set)):
        with pytest.raises(InputError, match=f"test_set is a {type(stream).__name__}"):
            replace(network, test_set=stream)


def test_targets_of_another_kind_are_refused(network):
    images, labels = network.test_set.tensors
    soft = TensorDataset(images, nn.functional.one_hot(labels, 10).float())
    with pytest.raises(InputError, match="test_set has targets of shape"):
        Unlearner(Task(network.model, network.loss, network.train_set, soft)).forget([3])
