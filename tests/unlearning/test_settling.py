"""The gentle pass after a step: what it reads, how fast it goes, and what it is good for."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Calibrated, InputError, Predicted, Task, Unlearner, fit
from excise.curvature.margins import margins
from excise.task.ids import all_but
from excise.training.retraining import fresh
from excise.unlearning import calibrated, predicted, settling

METHODS = [Calibrated, Predicted]


def digits(low, high, times=1 / 16):
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images[low:high] * times, dtype=torch.float32), torch.tensor(labels[low:high]))


def network_of(times=1 / 16, lr=0.1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    task = Task(start, nn.CrossEntropyLoss(), digits(0, 600, times), digits(600, 1797, times), weight_decay=1e-3)
    return task.with_model(fit(task, epochs=30, lr=lr).model)


@pytest.fixture(scope="module")
def network():
    return network_of()


@pytest.fixture(scope="module")
def threes(network):
    """Half of a class."""
    return (network.targets == 3).nonzero()[:30, 0].tolist()


@given(st.floats(0, 1e9))
def test_the_learning_rate_is_stable_whatever_the_curvature(trace):
    found = settling.rate(trace)
    assert 0 < found <= settling.MOST_RATE
    assert found * trace < 2 * (1 + 0.9)


def test_inputs_of_another_scale_do_not_throw_the_model_off():
    """With inputs of up to 64 the curvature is some thousand times larger, and a fixed rate would diverge."""
    task = network_of(times=4.0, lr=1e-3)
    done = Unlearner(task, Calibrated(settle=True)).forget(range(0, 600, 60))
    assert "gentle pass" in done.summary()
    kept = all_but(range(0, 600, 60), 600)
    before, after = (margins(task, model, kept).values > 0 for model in (task.model, done.model))
    assert after.double().mean() > before.double().mean() - 0.01


@pytest.mark.parametrize("method", [Calibrated, partial(Predicted, respond=False)])
def test_retained_samples_end_nearer_to_retraining_and_forgotten_ones_stay_near(network, threes, method):
    def retrained(seed):
        start = network.with_model(fresh(network.model, seed))
        return fit(start, ids=all_but(threes, 600), epochs=30, lr=0.1, seed=seed).model

    truth = torch.stack([margins(network, retrained(seed), range(600)).values for seed in (1, 2, 3)]).mean(0)
    models = [Unlearner(network, method(settle=one), guard=None).forget(threes).model for one in (False, True)]
    before, plain, settled = (
        (margins(network, model, range(600)).values - truth).abs() for model in (network.model, *models)
    )
    assert settled[all_but(threes, 600)].mean() < plain[all_but(threes, 600)].mean()
    assert settled[threes].mean() < 1.15 * plain[threes].mean()
    assert settled[threes].mean() < 0.2 * before[threes].mean()


def test_the_weight_decay_is_not_asked_by_the_pass(network):
    """The pass starts from the same weights whatever the decay, so it must end at the same."""
    ends = []
    for decay in (1e-4, 0.05):
        model, unlearner = copy.deepcopy(network.model), Unlearner(replace(network, weight_decay=decay))
        settling.settle(unlearner.task, model, unlearner.slices.block([0]), torch.arange(30, 600), 20.0, 0)
        ends.append(model)
    for one, other in zip(*(model.parameters() for model in ends), strict=True):
        assert torch.equal(one, other)


def test_forgotten_samples_are_not_trained_on(network, monkeypatch):
    trained, real = set(), settling.drift

    def watched(task, model, ids, *given, **options):
        trained.update(ids.tolist())
        real(task, model, ids, *given, **options)

    monkeypatch.setattr(settling, "drift", watched)
    monkeypatch.setattr(settling, "MOST_SAMPLES", 200)
    unlearner = Unlearner(network, Predicted(settle=True))
    unlearner.forget([3, 5])
    unlearner.forget([8])
    assert not trained & {3, 5}
    assert 200 < len(trained) <= 400  # two passes


@pytest.mark.parametrize(("method", "module"), [(Calibrated, calibrated), (Predicted, predicted)])
def test_a_pass_that_harms_is_left_out(network, threes, monkeypatch, method, module):
    plain = Unlearner(network, method()).forget(threes)

    def ruin(_, model, *__):
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()

    monkeypatch.setattr(module, "settle", ruin)
    done = Unlearner(network, method(settle=True)).forget(threes)
    assert "gentle pass" not in done.summary()
    for one, other in zip(plain.model.parameters(), done.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_settle_is_yes_or_no(method):
    with pytest.raises(InputError, match=r"settle must be True or False, not 0\.1"):
        method(settle=0.1)


def test_the_default_says_that_it_settled(network, threes, monkeypatch):
    monkeypatch.setattr("excise.unlearning.held_out_answers.BY_HEART", -1.0)  # so that nobody responds
    assert "gentle pass" in Unlearner(network).forget(threes).summary()


def test_a_model_that_a_pass_alone_would_move_does_not_settle(network, threes, monkeypatch):
    """One that was trained for a moment is not at rest, and knows its samples hardly better than others."""
    monkeypatch.setattr("excise.unlearning.held_out_answers.BY_HEART", -1.0)  # so that nobody responds
    start = network.with_model(fresh(network.model, 5))
    briefly = start.with_model(fit(start, epochs=3, lr=0.1).model)
    prepared = [Unlearner(task).prepare()._prepared for task in (network, briefly)]
    assert [one.settles for one in prepared] == [True, False]
    said = Unlearner(briefly, guard=None).forget(threes).summary()
    assert "method predicted was chosen" in said
    assert "gentle pass" not in said


def test_where_slices_are_selected_only_these_settle(network):
    done = Unlearner(network, Calibrated(selection=lambda *_: range(5), settle=True)).forget([3, 5])
    assert "gentle pass" in done.summary()
    before, after = network.model[0].weight, done.model[0].weight
    assert not torch.equal(before[:5], after[:5])
    assert torch.equal(before[5:], after[5:])
    assert torch.equal(network.model[2].weight, done.model[2].weight)
