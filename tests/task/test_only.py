"""A task with some of its samples: the same losses, read once; and predictions of several models in one reading."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.task import task as task_module
from excise.task.predictions import predict, predict_all

WEIGHTS = torch.tensor([1.0, 3.0, 0.5])
IDS = [7, 2, 5]


@pytest.fixture(params=["tensors", "list"])
def task(request):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(12, 4, generator=generator), torch.arange(12) % 3)
    samples = data if request.param == "tensors" else [data[place] for place in range(12)]
    keys = [f"customer {place}" for place in range(12)]
    return Task(nn.Linear(4, 3), nn.CrossEntropyLoss(weight=WEIGHTS), samples, keys=keys)


@pytest.mark.parametrize("most", [task_module.MOST_KEPT_VALUES, 1])
def test_losses_are_those_of_the_whole_task(task, most, monkeypatch):
    """Also with classes that are weighed, which takes the mean weight over all samples."""
    monkeypatch.setattr(task_module, "MOST_KEPT_VALUES", most)
    some = task.only(IDS)
    assert len(some.train_set) == 3
    assert some.keys is None
    expected = predict(task, task.model, IDS)
    found = predict(some, some.model)
    np.testing.assert_array_equal(found.losses, expected.losses)
    np.testing.assert_array_equal(found.targets, expected.targets)
    assert some.targets.tolist() == [1, 2, 2]
    assert some.fingerprint != task.fingerprint


def test_several_models_in_one_reading(task):
    models = [task.model, nn.Linear(4, 3).train(), task.model]
    found = predict_all(task, models, IDS)
    for model, one in zip(models, found, strict=True):
        np.testing.assert_array_equal(one.outputs, predict(task, model, IDS).outputs)
    assert models[1].training
    reads = []

    class Read(list):
        def __getitem__(self, place):
            reads.append(place)
            return super().__getitem__(place)

    counted = replace(task, train_set=Read(task.train_set[k] for k in range(12)), loss=nn.CrossEntropyLoss())
    predict_all(counted, models, IDS)
    assert reads == [0, *IDS]  # the first once, to see how large a sample is
