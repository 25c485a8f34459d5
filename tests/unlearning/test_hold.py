"""How samples hold the weights: strength and power, from retained samples that are forgotten on trial."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from digit_network import digit_network

from excise.slices.slices import find_slices
from excise.unlearning.exchangeability import HeldOutLoss, Known
from excise.unlearning.hold import GROUPS, LEAST_POWER, MOST_STRENGTH, Hold, OnTrial
from excise.unlearning.linearised import Linearised, Request


@pytest.fixture(scope="module")
def trial():
    task = digit_network(0)
    network = Linearised.of(task, task.model, find_slices(task.model), torch.arange(300), mass=300.0, seed=0)
    return OnTrial.of(network.gradients(task.model, torch.arange(60)), torch.full((60,), 1 / 60, dtype=torch.double))


def test_groups_on_trial_are_requests_of_their_own(trial):
    found = trial.forgotten(Hold(1.5, 0.8))
    for group in torch.arange(60).tensor_split(GROUPS):
        others = torch.tensor([place for place in range(60) if place not in group])
        forgotten, among = trial.samples.at(group), trial.among[others][:, others]
        slow = Request.of(forgotten, trial.samples.at(others), among).predict(Hold(1.5, 0.8)(forgotten.margins))
        assert torch.allclose(found.values[group], slow.margins, atol=1e-5)


def test_a_rise_is_that_of_the_mean_over_all_samples_that_those_on_trial_stand_for(trial):
    """The first thirty stand for all, so the others may say what they like."""
    first = torch.where(torch.arange(60) < 30, 1 / 30, 0.0).double()
    before, after = trial.samples.margins.losses, trial.forgotten(Hold(2.0)).losses
    slow = float((after.sqrt() - before.sqrt())[:30].mean())
    assert replace(trial, shares=first).rise(Hold(2.0), torch.sqrt) == pytest.approx(slow)


@pytest.mark.parametrize("truth", [Hold(3.3), Hold(0.7, 0.6)])
def test_the_strength_is_the_one_that_gives_the_loss(trial, truth):
    aim = trial.rise(truth, torch.clone)
    assert trial.strong_enough(truth.power, aim).strength == pytest.approx(truth.strength, rel=0.01)
    assert trial.strong_enough(truth.power, 1e9).strength == MOST_STRENGTH


@pytest.mark.parametrize("near", [0.01, 1.0, 60.0, 1e4])
def test_wherever_the_strength_is_looked_for_it_is_the_same(trial, near):
    aim = trial.rise(Hold(2.5), torch.clone)
    assert trial.strong_enough(1.0, aim, near).strength == pytest.approx(2.5, rel=0.01)
    assert trial.strong_enough(1.0, 1e9, near).strength == MOST_STRENGTH
    little = trial.rise(Hold(1e-4), torch.clone)
    assert trial.strong_enough(1.0, little, near).strength == pytest.approx(1e-4, rel=0.01)


def test_a_power_near_1_tells_a_model_that_has_come_to_rest():
    assert Hold(1.0).rest == 1
    assert Hold(1.0, LEAST_POWER).rest == 0


@pytest.mark.parametrize(("power", "found"), [(0.9, 0.9), (0.8, 0.8), (1.3, 1.0), (0.3, LEAST_POWER)])
def test_loss_and_root_together_tell_the_power(trial, power, found):
    truth = Hold(1.5, power)
    aims = trial.rise(truth, torch.clone), trial.rise(truth, torch.sqrt)
    bent = trial.bent(trial.strong_enough(1.0, aims[0]), *aims)
    assert bent.power == pytest.approx(found, abs=0.05)
    assert trial.rise(bent, torch.clone) == pytest.approx(aims[0], rel=0.02)


def test_a_part_of_a_hold_lets_go_of_less(trial):
    whole, few = Hold(2.0, 0.7), trial.samples.margins
    assert torch.allclose(whole.times(0.25)(few), 0.25 * whole(few))
    assert torch.allclose(Hold(1.0)(few), few.weights * torch.sigmoid(-few.values))


def test_few_held_out_samples_are_believed_less():
    """At a noise as large as the rise itself, half of it."""
    known = Known(torch.arange(4), torch.zeros(4).double(), torch.full((4,), 0.3).double(), noise=0.3)
    assert known.trust == pytest.approx(0.5)
    assert known.without(torch.tensor([1])).trust == known.trust
    assert replace(known, noise=0.0).trust == 1.0


@pytest.mark.parametrize("measure", [torch.clone, torch.sqrt])
def test_the_noise_is_that_of_what_samples_of_such_classes_should_have(measure):
    """Drawn again and again, with few held-out samples of the class that most of the others have."""
    rng, task = np.random.default_rng(0), digit_network(0)
    classes, asked = torch.tensor([0] * 10 + [1] * 90), torch.tensor([0] * 19 + [1])
    aims, said = [], []
    for _ in range(300):
        losses = measure(torch.tensor(rng.gamma(2.0, np.where(classes == 0, 1.0, 0.2))))
        found = HeldOutLoss.by(task, torch.arange(100), losses, classes)
        aims.append(float(found.of_each(asked).mean()))
        said.append(found.noise(asked))
    assert np.mean(said) == pytest.approx(np.std(aims), rel=0.15)


def test_a_class_of_one_held_out_sample_is_as_noisy_as_the_others():
    losses = torch.cat([torch.linspace(0, 4, 99), torch.tensor([1.0])]).double()
    found = HeldOutLoss.by(digit_network(0), torch.arange(100), losses, torch.tensor([0] * 99 + [1]))
    assert found.noise(torch.tensor([1])) == pytest.approx(float(losses.std()))
