"""The guard by answers: accuracy on retained and held-out samples, whatever becomes of the loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from digit_network import digit_network
from torch import nn
from torch.utils.data import TensorDataset

from excise import Guard, NothingForgotten, Step, Task, Unlearner
from excise.unlearning import answers
from excise.unlearning.answers import Answers, points_lost


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
    monkeypatch.setattr(Answers, "points_lost", lambda *_: 2.0)
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
    assert every.points_lost(network, network.model) == 0
    of_class = (network.targets == 3).nonzero()[:, 0].tolist()
    whole = every.without(network, of_class, of_class)
    assert not torch.isin(whole.retained.ids, torch.tensor(of_class)).any()
    assert 3 in every.held_out.classes
    assert 3 not in whole.held_out.classes  # nobody knows the class any more
    part = every.without(network, of_class[:5], of_class[:5])
    assert len(part.retained.ids) == 295
    assert torch.equal(part.held_out.ids, every.held_out.ids)


def test_the_worst_of_retained_and_held_out_samples_counts(network):
    class Confused(nn.Module):
        def forward(self, images):
            return -network.model(images)

    both = Answers.of(network, network.model, torch.arange(300), seed=0)
    assert both.points_lost(network, Confused()) > 70
    without_held_out = Answers.of(replace(network, test_set=None), network.model, torch.arange(300), seed=0)
    assert without_held_out.points_lost(replace(network, test_set=None), Confused()) > 70


def test_targets_that_are_no_classes_have_no_answers(network):
    images = network.train_set.tensors[0]
    numbers = Task(nn.Linear(64, 1), nn.MSELoss(reduction="none"), TensorDataset(images, images[:, :1]))
    assert Answers.of(numbers, numbers.model, torch.arange(300), seed=0) is None


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
