"""Drift: a pass over the retained samples that lets the model wander off from those it should forget.

It is plain training on the retained samples, except that at first weight decay is stronger and a constant push along
the forgotten samples' gradient (up their loss) is added. What only those samples held in place decays or is pushed
away; what others need is learned back in the rest of the pass. Where a pass is affordable, it forgets better than a
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.objective import gradient
from excise.slices import Block, trainable
from excise.task import Task, trained_parameters


@dataclass(frozen=True)
class Drift:
    """How to drift; the defaults are those for one pass.

    The learning rate falls to 0 along a cosine. For the first ``active`` share of the steps weight decay is ``decay``
    (if that is more than the task's), and the push moves the weights by ``push`` / λ · g in all, with g = Σ ∇ℓ of the
    forgotten samples at the start, divided by the number retained.
    """

    epochs: int = 1
    active: float = 0.4
    decay: float = 0.03
    push: float = 0.4
    lr: float = 0.05
    momentum: float = 0.9
    batch_size: int = 64
    everywhere: bool = True
    """Whether all parameters move, or only the chosen slices."""

    @classmethod
    def thorough(cls) -> Drift:
        """Three passes: slower, and a little better."""
        return cls(epochs=3, active=0.6, decay=0.01)


def drift(
    task: Task, model: nn.Module, forget: list[int], residual: Tensor, how: Drift, *, block: Block, seed: int
) -> None:
    """Drift in place."""
    parameters = trained_parameters(model)
    pushed = {name: part / len(residual) for name, part in gradient(task, model, forget).items()}
    moves = _mask(block, model) if not how.everywhere else None
    generator = torch.Generator().manual_seed(seed)
    per_epoch = math.ceil(len(residual) / how.batch_size)
    total = how.epochs * per_epoch
    rates = [how.lr * (1 + math.cos(math.pi * step / total)) / 2 for step in range(total)]
    last_active = round(how.active * total)
    strength = how.push / max(task.weight_decay, 1e-4) * (1 - how.momentum) / max(sum(rates[:last_active]), 1e-12)
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    step = 0
    for _ in range(how.epochs):
        order = residual[torch.randperm(len(residual), generator=generator)]
        for batch in task.batches(order, how.batch_size):
            active = step < last_active
            decay = max(how.decay, task.weight_decay) if active else task.weight_decay
            loss = task.losses(model, batch).mean()
            slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
                    change = slope + decay * parameter
                    if active:
                        change = change - strength * pushed[name]
                    if moves is not None:
                        change = change * moves[name]
                    velocity[name].mul_(how.momentum).add_(change)
                    parameter.sub_(rates[step] * velocity[name])
            step += 1


def _mask(block: Block, model: nn.Module) -> dict[str, Tensor]:
    """1 where the block is, 0 elsewhere."""
    like = trainable(model)
    return block.scatter(torch.ones(block.size(like)), like)
