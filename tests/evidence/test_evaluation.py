"""Groups of samples: predictions by hand, each model asked once, and the summary that papers average over."""

import gc

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.evidence.attacks import auc
from excise.evidence.evaluation import Evaluator

FORGET = [1, 4, 7]


def data(count, seed, classes=3):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 5, generator=generator), torch.arange(count) % classes)


class Asked(nn.Linear):
    """Counts the samples that it is asked about."""

    asked = 0

    def forward(self, inputs):
        self.asked += len(inputs)
        return super().forward(inputs)


@pytest.fixture
def task():
    torch.manual_seed(0)
    return Task(Asked(5, 3), nn.CrossEntropyLoss(reduction="none"), data(20, 1), data(12, 2))


def test_the_summary_by_hand(task):
    found = Evaluator(task, FORGET).predictions(task.model)
    rest = [i for i in range(20) if i not in FORGET]
    groups = (task.batch(FORGET), task.batch(rest), task.batch(range(12), task.test_set))
    with torch.no_grad():
        accuracies = [float((task.model(inputs).argmax(1) == labels).double().mean()) for inputs, labels in groups]
        losses = [task.losses(task.model, batch).numpy() for batch in groups]
    assert found.accuracies == pytest.approx(accuracies)
    alike = losses[2][groups[2][1].numpy() == 1]  # the forgotten are all of class 1
    assert len(found.comparable) == len(alike) == 4
    truth = roc_auc_score([1] * 3 + [0] * 4, -np.concatenate([losses[0], alike]))
    assert found.summary == pytest.approx(
        {"UA": 1 - accuracies[0], "RA": accuracies[1], "TA": accuracies[2], "MIA": truth}
    )


def test_a_model_is_asked_once_about_every_sample(task):
    evaluator = Evaluator(task, FORGET)
    assert evaluator.predictions(task.model) is evaluator.predictions(task.model)
    assert task.model.asked == 20 + 12


@pytest.mark.slow
def test_what_a_model_said_goes_with_it(task):
    """A comparison asks dozens of models, one after the other."""
    evaluator, other = Evaluator(task, FORGET), Asked(5, 3)
    evaluator.predictions(other)
    assert len(evaluator._known) == 1
    del other
    gc.collect()
    assert len(evaluator._known) == 0


def test_groups_can_be_smaller(task):
    evaluator = Evaluator(task, FORGET, held_out=torch.tensor([2, 5]), retained_samples=6, seed=3)
    found = evaluator.predictions(task.model)
    assert [len(group) for group in found.groups] == [3, 6, 2]
    assert found.test.targets.tolist() == [2, 2]
    assert not set(evaluator.retained.tolist()) & set(FORGET)
    again = Evaluator(task, FORGET, retained_samples=6, seed=3)
    assert evaluator.retained.tolist() == again.retained.tolist()


def test_of_several_labels_each_is_a_row():
    labels = TensorDataset(torch.randn(6, 5), torch.ones(6, 2))
    task = Task(nn.Linear(5, 2), nn.BCEWithLogitsLoss(reduction="none"), labels, labels)
    found = Evaluator(task, [0]).predictions(task.model)
    assert found.logits.forget.shape == (2, 2)
    assert found.logits.held_out.shape == (12, 2)
    assert (found.logits.forget[:, 0] == 0).all()
    assert [labels.tolist() for labels in found.labels] == [[1] * 2, [1] * 12]
    assert len(found.comparable) == 6


def test_without_anything_to_compare_with_the_auc_is_not_defined():
    assert np.isnan(auc([1.0], []))
