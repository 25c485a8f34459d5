"""Drift: the arithmetic of its steps."""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Drift, PerLayer, Task
from excise.slices.slices import find_slices
from excise.unlearning.drift import drift


class WithSpare(nn.Module):
    """Two layers, of which the outputs depend on one."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        nn.init.constant_(self.used.weight, 2.0), nn.init.constant_(self.spare.weight, 3.0)

    def forward(self, inputs):
        return self.used(inputs)


def drifted(how, *, force=1.0):
    data = TensorDataset(torch.ones(4, 1).double(), torch.tensor([1.0, 1.0, 1.0, 9.0]).double())
    model = WithSpare()
    task = Task(model, lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / 2, data, weight_decay=0.1)
    step = {name: torch.full_like(weight, -0.5) for name, weight in model.named_parameters()}
    block = find_slices(model).block([0])
    drift(task, model, torch.tensor([0, 1, 2]), step, how, block=block, seed=0, force=force)
    assert all(weight.grad is None for weight in model.parameters())
    return model.used.weight.item(), model.spare.weight.item()


def by_hand(how, weight, target=None, *, force=1.0):
    """The formula, for one weight and full batches."""
    rates = [how.lr * (1 + math.cos(math.pi * at / how.epochs)) / 2 for at in range(how.epochs)]
    last = round(how.active * how.epochs)
    velocity = 0.0
    for at, rate in enumerate(rates):
        gradient = 0.0 if target is None else weight - target
        if how.clip is not None:
            gradient *= how.clip / max(abs(gradient), how.clip)
        gradient += (0.1 + (force * max(0, how.decay - 0.1) if at < last else 0)) * weight
        if at < last:
            gradient -= force * how.push * (1 - how.momentum) / sum(rates[:last]) * -0.5
        velocity = how.momentum * velocity + gradient
        weight -= rate * velocity
    return weight


def test_steps_are_gradient_decay_and_push_also_for_weights_that_no_loss_uses():
    how = Drift(epochs=5, active=0.4, decay=0.5, push=2.0)
    for force in (1.0, 0.5):
        used, spare = drifted(how, force=force)
        assert math.isclose(used, by_hand(how, 2.0, 1.0, force=force), rel_tol=1e-12)
        assert math.isclose(spare, by_hand(how, 3.0, force=force), rel_tol=1e-12)


def test_only_the_gradient_of_the_loss_is_clipped():
    how = Drift(epochs=5, active=0.4, decay=0.5, push=2.0, clip=0.25)
    used, spare = drifted(how)
    assert math.isclose(used, by_hand(how, 2.0, 1.0), rel_tol=1e-12)
    assert math.isclose(spare, by_hand(how, 3.0), rel_tol=1e-12)


def test_outside_the_chosen_slices_nothing_moves():
    how = Drift(epochs=5, active=0.4, decay=0.5, push=2.0, selection=PerLayer())
    used, spare = drifted(how)
    assert math.isclose(used, by_hand(how, 2.0, 1.0), rel_tol=1e-12)
    assert spare == 3.0
