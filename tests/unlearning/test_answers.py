"""The guard by answers: accuracy on retained and held-out samples, and the loss of held-out ones."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from digit_network import digit_network
from torch import nn
from torch.utils.data import TensorDataset

from excise import Guard, NothingForgotten, Step, Task, Unlearner
from excise.task.ids import all_but
from excise.task.objective import losses_on
from excise.unlearning import answers
from excise.unlearning.answers import Answers, Harm, classes_gone, loss_risen, points_lost


@pytest.fixture(scope="module")
def network():
    return digit_network(1)


def accuracy(model, dataset):
    images, labels = dataset.tensors
    return float((model(images).argmax(1) == labels).float().mean())


def test_a_step_that_spoils_answers_is_shortened_whatever_the_loss_may_become(network):
    lenient = Guard(factor=1e6, points=100)
    spoilt = Unlearner(network, Step("all", size=20), guard=lenient).forget(range(20))
    held = Unlearner(network, Step("all", size=20), guard=Guard(factor=1e6)).forget(range(20))
    before = accuracy(network.model, network.test_set)
    assert accuracy(spoilt.model, network.test_set) < before - 0.05
    assert accuracy(held.model, network.test_set) > before - 0.02
    assert held.step_share < spoilt.step_share
    assert "to protect the retained samples" in held.summary()


def test_a_step_that_spoils_answers_at_any_length_is_refused(network, monkeypatch):
    monkeypatch.setattr(Answers, "harm", lambda *_: Harm(2.0, 0.0))
    with pytest.raises(NothingForgotten, match=r"the accuracy within 0\.5 points"):
        Unlearner(network, Step("all")).forget([3])


def test_what_may_be_chance_does_not_count():
    """Of 500 samples 20 go wrong; 5 get right, so that 25 change and 5 may do so for no reason. With 10 all may."""
    before = torch.arange(500) >= 20
    for won, points in ((5, 2.0), (10, 0.0), (20, 0.0)):
        after = before.clone()
        after[20:40], after[:won] = False, True
        assert points_lost(before, after) == pytest.approx(points)


def test_few_samples_tell_what_all_of_them_lose(network):
    """A hundred draws of a quarter tell it in the mean; most of what they look at is unsure."""

    class Blurred(nn.Module):
        def forward(self, images):
            generator = torch.Generator().manual_seed(int(images.sum()))
            outputs = network.model(images)
            return outputs + 4 * torch.randn(outputs.shape, generator=generator)

    every = Answers.of(network, network.model, torch.arange(300), seed=0).held_out
    after = answers._seen(network, Blurred(), every.ids, network.test_set).right
    said = []
    for seed in range(100):
        few = every.drawn(len(every.ids) // 4, seed)
        lost = few.counts[few.right].sum() - few.counts[after[torch.isin(every.ids, few.ids)]].sum()
        said.append(100 * float(lost / few.counts.sum()))
    exactly = 100 * float((every.right.double() - after.double()).mean())
    assert exactly > 5
    assert np.mean(said) == pytest.approx(exactly, abs=4 * np.std(said) / 10)
    assert few.leads.mean() < 0.8 * every.leads.mean()


def test_samples_count_as_often_as_they_stand_for():
    """Two that stand for fifty each are lost, of two hundred: their chance is √(50² + 50²)."""
    before, counts = torch.ones(102, dtype=torch.bool), torch.ones(102)
    counts[:2] = 50.0
    after = before.clone()
    after[:2] = False
    assert points_lost(before, after, counts) == 0.0  # which two draws may do
    counts[:2], after[2:30] = 10.0, False
    assert points_lost(before, after, counts) == pytest.approx(100 * (48 - 228**0.5) / 120)


def test_what_is_counted(network):
    every = Answers.of(network, network.model, torch.arange(300), seed=0)
    assert every.harm(network, network.model) == Harm(0.0, 0.0)
    of_class = (network.targets == 3).nonzero()[:, 0].tolist()
    whole = every.without(network, of_class, of_class, all_but(of_class, 300))
    assert not torch.isin(whole.retained.ids, torch.tensor(of_class)).any()
    assert 3 in every.held_out.classes
    assert 3 not in whole.held_out.classes  # nobody knows the class any more
    part = every.without(network, of_class[:5], of_class[:5], all_but(of_class[:5], 300))
    assert len(part.retained.ids) == 295
    assert torch.equal(part.held_out.ids, every.held_out.ids)


def test_the_worst_of_retained_and_held_out_samples_counts(network):
    class Confused(nn.Module):
        def forward(self, images):
            return -network.model(images)

    both = Answers.of(network, network.model, torch.arange(300), seed=0)
    assert both.harm(network, Confused()).points > 70
    without_held_out = Answers.of(replace(network, test_set=None), network.model, torch.arange(300), seed=0)
    assert without_held_out.harm(replace(network, test_set=None), Confused()).points > 70


def test_of_targets_that_are_no_classes_the_loss_is_watched_alone(network):
    images = network.train_set.tensors[0]
    data = TensorDataset(images, images[:, :1])
    numbers = Task(nn.Linear(64, 1), nn.MSELoss(reduction="none"), data, test_set=data)
    answers = Answers.of(numbers, numbers.model, torch.arange(300), seed=0)
    worse = copy.deepcopy(numbers.model)
    nn.init.constant_(worse.weight, 1.0)
    assert answers.harm(numbers, numbers.model) == Harm(0.0, 0.0)
    harm = answers.harm(numbers, worse)
    assert harm.points == 0
    assert harm.loss > 1
    assert len(answers.without(numbers, [3], [3], all_but([3], 300)).held_out.ids) == len(answers.held_out.ids)


def test_a_class_that_was_not_drawn_is_watched_as_long_as_one_of_it_stays(network):
    answers = Answers.of(network, network.model, torch.arange(300), seed=0)
    threes = (network.targets == 3).nonzero()[:, 0].tolist()
    unseen = replace(answers, retained=answers.retained.at(answers.retained.classes != 3))
    assert 3 in unseen.without(network, threes[:5], threes[:5], all_but(threes[:5], 300)).held_out.classes
    assert 3 not in unseen.without(network, threes, threes, all_but(threes, 300)).held_out.classes


def test_classes_that_are_gone_are_those_of_no_retained_sample(network):
    threes = (network.targets == 3).nonzero()[:, 0].tolist()
    asked = torch.tensor([3, 4])
    assert classes_gone(network, asked, all_but(threes, 300)).tolist() == [3]
    assert classes_gone(network, asked, all_but(threes[1:], 300)).tolist() == []


def test_a_step_that_spoils_the_loss_of_held_out_samples_is_shortened(network):
    """Whatever becomes of retained ones, and of what is right."""
    lenient, held = Guard(factor=1e6, points=100), Guard(rise=1e6, points=100)
    before = float(losses_on(replace(network, train_set=network.test_set), network.model, range(600)).mean())
    losses = []
    for guard in (lenient, held):
        done = Unlearner(network, Step("all", size=20), guard=guard).forget(range(20))
        losses.append(float(losses_on(replace(network, train_set=network.test_set), done.model, range(600)).mean()))
    assert losses[0] > 1.5 * before
    assert losses[1] < 1.35 * before


def test_a_rise_that_may_be_chance_does_not_count():
    """One of a hundred samples carries all of it; when each has its part, it counts but for one standard deviation."""
    before, one = torch.ones(100), torch.ones(100)
    one[0] += 100
    assert loss_risen(before, one) == 0.0
    each = before + 0.5 * torch.arange(100).remainder(2)
    assert loss_risen(before, each) == pytest.approx(0.25 - 0.025)
    assert loss_risen(before, torch.full((100,), torch.nan)) == math.inf


def test_samples_that_had_no_finite_loss_do_not_tell_a_rise():
    """Without them it is what it would be; and a model that rules them out is not taken for harmed by every step."""
    before = torch.linspace(0.5, 1.5, 100)
    after, counts = 1.5 * before, torch.linspace(1, 3, 100)
    for none in (torch.inf, torch.nan):
        more = [torch.cat([one, torch.full((7,), none)]) for one in (before, after)]
        assert loss_risen(*more) == pytest.approx(loss_risen(before, after))
        assert loss_risen(*more, torch.cat([counts, torch.ones(7)])) == pytest.approx(loss_risen(before, after, counts))
        assert loss_risen(more[0], more[0]) == 0.0


def test_samples_without_a_label_are_left_out(network):
    images, labels = network.train_set.tensors
    some = labels.clone()
    some[::3] = -100
    task = replace(network, train_set=TensorDataset(images, some))
    assert len(Answers.of(task, network.model, torch.arange(300), seed=0).retained.ids) == 200


def test_later_requests_are_held_against_the_model_as_it_is_then(network):
    unlearner = Unlearner(network, Step("all"))
    unlearner.forget([1, 2])
    kept = unlearner._answers
    assert not {1, 2} & set(kept.retained.ids.tolist())
    fresh = kept.under(network, unlearner.model)
    assert torch.equal(kept.held_out.right, fresh.held_out.right)
