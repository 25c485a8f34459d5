"""Denial against closed forms, in double precision, and on a network that knows a class by heart."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Drift, InputError, NothingForgotten, Task, Unlearner, fit
from excise._support.turns import RoundRobin
from excise.slices import whole_model_block
from excise.unlearning.denial import Denial, deny, deny_classes
from excise.unlearning.drift import drift

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
logits = st.lists(st.floats(-8, 8), min_size=2, max_size=6)


@given(logits)
def test_both_forms_are_the_logarithm_of_all_other_probabilities(row):
    others = 1 - np.exp(log_softmax(row))[0]
    scores, label = torch.tensor([row], dtype=torch.float64), torch.tensor([0])
    assert deny_classes(scores, label).item() == pytest.approx(-np.log(others), rel=1e-6, abs=1e-9)
    assert deny(CROSS_ENTROPY(scores, label)).item() == pytest.approx(-np.log(others), rel=1e-6, abs=1e-9)


@pytest.mark.slow
@given(logits)
def test_the_slope_is_the_probability_of_the_label(row):
    scores = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    deny_classes(scores, torch.tensor([0])).sum().backward()
    p = np.exp(log_softmax(row))
    truth = -p[0] * p / p[1:].sum()
    truth[0] = p[0]
    assert scores.grad.flatten().tolist() == pytest.approx(truth.tolist(), rel=1e-6, abs=1e-12)


def test_what_is_known_by_heart_has_a_slope_and_no_infinity():
    scores = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    assert CROSS_ENTROPY(scores, torch.tensor([0])).item() == 0
    deny_classes(scores, torch.tensor([0])).sum().backward()
    assert scores.grad.tolist() == [[1.0, -0.5, -0.5]]
    losses = torch.zeros(2, requires_grad=True)
    deny(losses).sum().backward()
    assert torch.isfinite(losses.grad).all()


@pytest.mark.parametrize("size", [3, 64])
def test_other_losses_are_denied_by_their_value(size):
    """Several labels a sample: the mean of binary cross-entropies."""
    inputs, labels = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.eye(7, 2)
    task = Task(nn.Linear(4, 2), nn.BCEWithLogitsLoss(reduction="none"), TensorDataset(inputs, labels))
    ids = torch.tensor([1, 4, 6])
    with torch.no_grad():
        losses = task.losses(task.model, task.batch(ids)).double().numpy()
        denied = Denial(task, ids, size=size, seed=0).loss(task.model).item()
    assert denied == pytest.approx(np.mean(-np.log(1 - np.exp(-losses))), rel=1e-5)


def test_samples_without_a_label_and_models_of_one_class_have_nothing_to_deny():
    inputs = torch.ones(3, 4)
    for labels, classes in (
        (torch.tensor([-100, 1, -100]), 2),
        (torch.tensor([-100, -100, -100]), 2),
        (torch.zeros(3).long(), 1),
    ):
        task = Task(nn.Linear(4, classes), CROSS_ENTROPY, TensorDataset(inputs, labels))
        loss = Denial(task, torch.arange(3), size=3, seed=0).loss(task.model)
        loss.backward()
        slope = task.model.weight.grad.norm()
        assert torch.isfinite(loss)
        assert torch.isfinite(slope)
        assert (slope > 0) == bool((labels == 1).any())


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 20))
def test_turns_are_fair_at_any_time(count, size, times):
    turns, seen = RoundRobin(count, size, seed=0), np.zeros(count, dtype=int)
    for _ in range(times):
        now = turns.next()
        assert len(set(now.tolist())) == len(now) == min(size, count)
        seen[now] += 1
    assert np.ptp(seen) <= 1


# --- the drift that denies -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_heart():
    """A network that is so sure of 8 × 8 digits that their losses, and Newton's step with them, are next to nothing."""
    images, labels = load_digits(return_X_y=True)
    data = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    train, test = (TensorDataset(*(part[some] for part in data)) for some in (slice(600), slice(600, 1200)))
    task = Task(model, CROSS_ENTROPY, train, test, weight_decay=1e-5)
    sure = fit(task, epochs=100, lr=0.1).model
    with torch.no_grad():
        for weight in sure[2].parameters():
            weight *= 8
    return replace(task, model=sure)


def shares(model, task, label):
    """Accuracy on the class, and on all others, of test images."""
    inputs, labels = task.test_set.tensors
    with torch.no_grad():
        right = (model(inputs).argmax(1) == labels).float()
    return right[labels == label].mean().item(), right[labels != label].mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("label", [0, 3])
def test_a_class_known_by_heart_is_forgotten_and_the_others_are_not(by_heart, label):
    ids = (by_heart.train_set.tensors[1] == label).nonzero().flatten().tolist()
    before = shares(by_heart.model, by_heart, label)
    done = Unlearner(by_heart, Drift.of_class(), n_jobs=1).forget(ids)
    theirs, others = shares(done.model, by_heart, label)
    assert before[0] > 0.85
    assert theirs == 0
    assert others > before[1] - 0.03
    undenied = replace(Drift.of_class(), denial=0.0)  # the Newton step alone does not do it
    again = Unlearner(by_heart, undenied, n_jobs=1).forget(ids)
    assert shares(again.model, by_heart, label)[0] > 0.5


@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_a_batch_moves_the_model_as_far_as_its_clipped_slope(by_heart, clip):
    task = replace(by_heart, weight_decay=0.0)
    how = Drift(epochs=1, batch_size=64, momentum=0.0, decay=0.0, push=0.0, denial=1.0, active=1.0, clip=clip, lr=0.1)
    ids = torch.arange(60)
    moved = replace(task, model=copy.deepcopy(task.model))
    drift(
        moved,
        moved.model,
        torch.arange(60, 68),  # one batch
        {name: torch.zeros_like(weight) for name, weight in moved.model.named_parameters()},
        how,
        block=whole_model_block(moved.model),
        seed=0,
        denied=Denial(task, ids, size=64, seed=0),
    )
    pairs = zip(moved.model.parameters(), task.model.parameters(), strict=True)
    far = torch.stack([(a - b).detach().norm() for a, b in pairs]).norm()
    assert far.item() == pytest.approx(how.lr * clip, rel=1e-3)


def test_a_model_that_no_drift_leaves_intact_is_given_back_as_it_was(by_heart):
    """So sure of itself that plain training at this rate ruins it, however little is denied."""
    surer = copy.deepcopy(by_heart.model)
    with torch.no_grad():
        for weight in surer.parameters():
            weight *= 8
    task = replace(by_heart, model=surer)
    ids = (task.train_set.tensors[1] == 3).nonzero().flatten().tolist()
    unlearner = Unlearner(task, replace(Drift.of_class(), lr=5.0, clip=None), n_jobs=1)
    with pytest.raises(NothingForgotten, match="no drift of the"):
        unlearner.forget(ids)
    assert unlearner.forgotten == ()
    pairs = zip(unlearner.model.parameters(), surer.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_single_batch_denies_too(by_heart):
    """The active share of one step is not rounded to none."""
    few = TensorDataset(*(part[:60] for part in by_heart.train_set.tensors))
    ids = (few.tensors[1] == 3).nonzero().flatten().tolist()
    task = replace(by_heart, train_set=few)
    once = [Unlearner(task, Drift(denial=denial, push=0.0), guard=None, n_jobs=1).forget(ids) for denial in (0.0, 1.0)]
    assert once[1].forget_loss[1] > once[0].forget_loss[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"denial": -1.0}, "denial must be a finite number, 0 or more, not -1.0"),
        ({"push": float("nan")}, "push must be a finite number, 0 or more, not nan"),
        ({"denial": 1.0, "active": 0.0}, "active must be above 0 where denial is"),
        ({"clip": 0.0}, "clip must be"),
        ({"active": 1.5}, "active must be from 0 to 1"),
        ({"epochs": 0}, "epochs must be"),
        ({"decay": -0.1}, "decay must be a finite number, 0 or more"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Drift(**options)
