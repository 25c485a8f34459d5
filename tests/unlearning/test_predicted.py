"""Predicted answers, against retrained models and held-out samples."""

import copy
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Guard, InputError, NeverSupportedError, NothingForgotten, Predicted, Task, Unlearner, fit
from excise.curvature.margins import margins
from excise.task.ids import all_but
from excise.training.retraining import fresh
from excise.unlearning import linearised
from excise.unlearning.answers import points_lost
from excise.unlearning.linearised import Request

WRONG = list(range(40, 52))


def digits(low, high, wrong=()):
    images, labels = load_digits(return_X_y=True)
    labels = torch.tensor(labels)
    labels[list(wrong)] = (labels[list(wrong)] + 3) % 10
    return TensorDataset(torch.tensor(images[low:high] / 16, dtype=torch.float32), labels[low:high])


def network_of(data, epochs=30):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    task = Task(start, nn.CrossEntropyLoss(), data, digits(600, 1797), weight_decay=1e-3)
    return task.with_model(fit(task, epochs=epochs, lr=0.1).model)


@pytest.fixture(scope="module")
def network():
    return network_of(digits(0, 600, WRONG))


def retrained(task, ids, seed):
    start = task.with_model(fresh(task.model, seed))
    return fit(start, ids=all_but(ids, len(task.train_set)), epochs=30, lr=0.1, seed=seed).model


@pytest.mark.parametrize("ids", [WRONG, list(range(0, 600, 50)), "class"], ids=["wrong labels", "random", "of a class"])
def test_the_answers_go_to_those_of_retrained_models(network, ids):
    ids = (network.targets == 3).nonzero()[:30, 0].tolist() if ids == "class" else ids
    done = Unlearner(network, Predicted()).forget(ids)
    truth = torch.stack([margins(network, retrained(network, ids, seed), ids).values for seed in (1, 2, 3)]).mean(0)
    before, after = (margins(network, model, ids).values for model in (network.model, done.model))
    assert (after - truth).abs().mean() < 0.75 * (before - truth).abs().mean()
    kept = all_but(ids, 600)
    accuracy = [(margins(network, model, kept).values > 0).double().mean() for model in (network.model, done.model)]
    assert accuracy[1] > accuracy[0] - 0.02


def test_the_damping_is_found_wherever_it_starts(network, monkeypatch):
    """From starts that are ten times apart; samples then let go of about what they pulled with."""
    found = []
    for start in (3e-5, 3e-4):
        monkeypatch.setattr(linearised, "DAMPING", start)
        found.append(Unlearner(network, Predicted()).prepare()._prepared)
    dampings = [one.network.damping for one in found]
    assert 1 / 2.5 < dampings[0] / dampings[1] < 2.5
    assert all(0.6 < one.hold.strength < 1.6 for one in found)


def test_the_weight_decay_is_not_asked(network):
    found = [
        Unlearner(replace(network, weight_decay=times * 1e-3), Predicted(), guard=None).forget(WRONG).model
        for times in (0.1, 50)
    ]
    for one, other in zip(*(model.parameters() for model in found), strict=True):
        assert torch.equal(one, other)


def test_the_model_given_is_not_changed_and_forgotten_samples_do_not_resist(network):
    before = copy.deepcopy(network.model.state_dict())
    unlearner = Unlearner(network, Predicted()).prepare()
    resisting = unlearner._prepared.retained.ids[:5].tolist()
    done = unlearner.forget(resisting)
    assert "predicted" in done.summary()
    unlearner.forget([i for i in range(100) if i not in resisting][:3])
    assert all(torch.equal(one, before[name]) for name, one in network.model.state_dict().items())


def test_a_request_may_take_all_samples_that_resist(network):
    unlearner = Unlearner(network, Predicted(resisting=2, harmed=0)).prepare()
    resisting = unlearner._prepared.retained.ids.tolist()
    done = unlearner.forget(sorted({*resisting, *WRONG}))
    assert done.forget_loss[1] > done.forget_loss[0]


def test_what_is_known_by_heart_gets_answers_of_held_out_samples(network, monkeypatch):
    """Of small networks the prediction is good, so that the other way has to be asked for."""
    ids = WRONG
    unlearner = Unlearner(network, Predicted(respond=False), guard=None).prepare()
    prepared = unlearner._prepared
    assert not prepared.by_heart
    monkeypatch.setattr("excise.unlearning.held_out_answers.BY_HEART", -1.0)
    done = unlearner.forget(ids)
    assert "by heart" in done.summary()
    first = prepared.network.gradients(network.model, torch.tensor(ids))
    wanted = prepared.answers.instead_of(
        Request.of(first, prepared.retained, prepared.among).predict(prepared.hold(first.margins)).margins,
        network.targets[ids],
    )
    before, after = (margins(network, model, ids).values for model in (network.model, done.model))
    assert (after - wanted).abs().mean() < 0.25 * (before - wanted).abs().mean()
    assert (margins(network, done.model, all_but(ids, 600)).values > 0).double().mean() > 0.97


def test_a_model_that_knows_its_samples_no_better_forgets_nothing(network):
    assert Unlearner(network, Predicted()).prepare()._prepared.hold.strength > 0
    unseen = replace(network, train_set=digits(700, 1300), test_set=digits(0, 600))
    with pytest.raises(NothingForgotten, match="knows the first no better"):
        Unlearner(unseen, Predicted()).forget([1])


@pytest.mark.parametrize("count", [0, 12])
def test_held_out_samples_are_needed(network, count):
    few = None if not count else digits(600, 600 + count)
    with pytest.raises(InputError, match="30 or more"):
        Unlearner(replace(network, test_set=few), Predicted()).forget([1])


def test_held_out_samples_of_other_classes_are_refused(network):
    images, labels = network.test_set.tensors
    with pytest.raises(InputError, match="same classes"):
        Unlearner(
            replace(network, test_set=TensorDataset(images[labels == 0], labels[labels == 0])), Predicted()
        ).forget([1])


def test_other_losses_are_refused(network):
    with pytest.raises(NeverSupportedError, match="--method calibrated"):
        Unlearner(replace(network, loss=nn.CrossEntropyLoss(label_smoothing=0.1)), Predicted())


def test_the_guard_shortens_what_costs_answers(network):
    ids = (network.targets == 3).nonzero()[:, 0].tolist()[:-2]
    free = Unlearner(network, Predicted(), guard=None).forget(ids)
    held = Unlearner(network, Predicted(), guard=Guard(points=0.0)).forget(ids)
    assert held.step_share <= free.step_share == 1


def test_points_count_where_they_are_not_lost_by_chance():
    before = torch.ones(1000, dtype=torch.bool)
    after = before.clone()
    after[:1] = False
    assert points_lost(before, after) == 0
    after[:100] = False
    assert points_lost(before, after) == pytest.approx(9.0)
    assert points_lost(after, before) == 0


def test_options_are_checked():
    with pytest.raises(InputError, match="trial"):
        Predicted(trial=0)
    with pytest.raises(InputError, match="points"):
        Guard(points=-1)


def test_answers_so_far_away_that_no_number_tells_the_step_leave_nothing_forgotten():
    """Margins in the hundreds, and a few labels that are wrong: the first correction is no number."""

    def blobs(seed, wrong):
        generator = torch.Generator().manual_seed(seed)
        classes = torch.randint(0, 2, (600,), generator=generator)
        inputs = torch.randn(600, 5, generator=generator) + 100.0 * (2 * classes[:, None] - 1)
        classes[:wrong] ^= 1
        return TensorDataset(inputs, classes)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    task = Task(model, nn.CrossEntropyLoss(), blobs(1, 4), blobs(2, 7), weight_decay=1e-4)
    task = task.with_model(fit(task, epochs=5, lr=1e-4, seed=0).model)
    with pytest.raises(NothingForgotten):
        Unlearner(task, Predicted()).forget(range(10, 15))
