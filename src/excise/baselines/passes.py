"""The one loop of stochastic gradient descent that the methods share: passes over samples, each down a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.baselines.signature import Start
from excise.errors import InputError
from excise.inputs import positive, require, whole
from excise.task import trained_parameters
from excise.training import batch_sizes
from excise.training import own_randomness as own_randomness

Loss = Callable[[Tensor], Tensor]
"""The loss of a batch, by the ids of its samples."""


@dataclass(frozen=True)
class Pass:
    """Once through the samples, in random order: every batch a step down its loss."""

    ids: Tensor
    loss: Loss


@dataclass(frozen=True)
class Pace:
    """How fast: the learning rate falls to 0 along a cosine over all passes, as in ``fit``."""

    lr: float
    momentum: float
    batch_size: int

    def __post_init__(self) -> None:
        positive(self.lr, "lr")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to less than 1")
        whole(self.batch_size, "batch_size")


def mean_loss(start: Start) -> Loss:
    """The mean loss of a batch, as in training."""
    return lambda ids: start.task.losses(start.model, start.training_batch(ids)).mean()


def descend(
    start: Start,
    passes: Sequence[Pass],
    pace: Pace,
    *,
    weight_decay: float,
    moves: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Train the model of the start, in place; with ``moves``, only the weights where that is true."""
    model = start.model
    weights = trained_parameters(model)
    before = {name: weight.detach().clone() for name, weight in weights.items()} if moves else {}
    optimizer = torch.optim.SGD(weights.values(), lr=pace.lr, momentum=pace.momentum, weight_decay=weight_decay)
    sizes = [batch_sizes(len(one.ids), pace.batch_size) for one in passes]
    total = sum(map(len, sizes))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / total)) / 2)
    generator = torch.Generator().manual_seed(start.seed)
    for one, batches in zip(passes, sizes, strict=True):
        with own_randomness(generator):
            order = one.ids[torch.randperm(len(one.ids), generator=generator)]
            for ids in order.split(batches):
                optimizer.zero_grad()
                one.loss(ids).backward()
                optimizer.step()
                schedule.step()
                _put_back(weights, before, moves)
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        raise InputError(f"the weights diverged with lr={pace.lr}; use a smaller lr or fewer epochs.")
    optimizer.zero_grad()
    return model.eval()


def _put_back(weights: Mapping[str, Tensor], before: Mapping[str, Tensor], moves: Mapping[str, Tensor] | None) -> None:
    """Undo what weight decay or momentum did outside the moves: w = m ∘ w + (1 - m) ∘ w_before."""
    if moves is None:
        return
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(torch.where(moves[name], weight, before[name]))
