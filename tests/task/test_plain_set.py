"""A training set with augmentation, and the same samples without it."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from excise import ChangingDataWarning, InputError, Task, Unlearner, fit
from excise.task.predictions import predict


class Noisy(Dataset):
    """Gives other values at each reading."""

    def __init__(self, plain):
        self.plain, self.read = plain, 0

    def __len__(self):
        return len(self.plain)

    def __getitem__(self, place):
        self.read += 1
        inputs, label = self.plain[place]
        return inputs + 0.1 * torch.randn(inputs.shape), label


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator)
    plain = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = Task(nn.Linear(4, 2), nn.CrossEntropyLoss(), plain)
    return replace(start.with_model(fit(start).model), train_set=Noisy(plain), plain_set=plain)


def test_everything_reads_the_plain_samples(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChangingDataWarning)
        done = Unlearner(task, "step").forget([3, 5])
    same = Unlearner(replace(task, train_set=task.plain_set, plain_set=None), "step").forget([3, 5])
    assert torch.equal(done.model.weight, same.model.weight)
    assert task.fingerprint == replace(task, train_set=task.plain_set, plain_set=None).fingerprint
    predict(task, task.model)
    assert task.targets.tolist() == task.plain_set.tensors[1].tolist()
    assert task.only([1, 2]).train_set.tensors[0].shape == (2, 4)
    assert task.train_set.read == 0


def test_training_reads_the_augmented_ones(task):
    fit(task, epochs=1)
    assert task.train_set.read == 60


def test_without_it_the_warning_names_it(task):
    with pytest.warns(ChangingDataWarning, match="plain_set="):
        Unlearner(replace(task, plain_set=None), "step")


def test_other_samples_are_refused(task):
    with pytest.raises(InputError, match="plain_set has 2 samples and train_set 60"):
        replace(task, plain_set=TensorDataset(torch.ones(2, 4), torch.zeros(2).long()))
