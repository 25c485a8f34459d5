"""Drift: a pass over the retained samples that lets the model wander off from those it should forget.

It is plain training on the retained samples, except that at first weight decay is stronger and a constant push along
the Newton step of the forgotten samples is added. What only those samples held in place decays or is pushed away; what
others need is learned back in the rest of the pass. Where a pass is affordable, it forgets better than a step alone.
Networks that know images by heart are better taught what they say about views of them instead (see ``views``), and a
class or a person is better denied (see ``denial``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.denial import Denial
from excise.inputs import positive, require, whole
from excise.slices import Block, Tensors, trainable
from excise.task import Task, trained_parameters
from excise.views import Lesson, Views


@dataclass(frozen=True)
class Drift:
    """How to drift; the defaults are those for one pass.

    The learning rate falls to 0 along a cosine. For the first ``active`` share of the steps weight decay is ``decay``
    (if that is more than the task's), and the push moves the weights by ``push`` times the Newton step in all.
    """

    epochs: int = 1
    active: float = 0.4
    decay: float = 0.01
    push: float = 1.0
    lr: float = 0.05
    momentum: float = 0.9
    batch_size: int = 64
    everywhere: bool = True
    """Whether all parameters move, or only the chosen slices."""
    denial: float = 0.0
    """Weight of denying the forgotten samples' answers, in the active steps."""
    clip: float | None = None
    """The longest slope of a batch: a model that is jolted out of what it knows by heart must not be thrown off."""
    views: Views | None = None
    """Teach the answers to views of the forgotten images along the way."""

    def __post_init__(self) -> None:
        whole(self.epochs, "epochs")
        whole(self.batch_size, "batch_size")
        positive(self.lr, "lr")
        require(0 <= self.active <= 1, "active", self.active, "from 0 to 1")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to less than 1")
        for name in ("decay", "denial", "push"):
            require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a finite number, 0 or more")
        require(self.active or not self.denial, "active", self.active, "above 0 where denial is, which acts then")
        if self.clip is not None:
            positive(self.clip, "clip")

    @classmethod
    def thorough(cls) -> Drift:
        """Three passes: slower and better."""
        return cls(epochs=3, active=0.5)

    @classmethod
    def of_class(cls) -> Drift:
        """For all samples of a class or of a person: three passes, and while they drift these are denied."""
        return cls(epochs=3, active=0.5, denial=0.1, clip=1.0)

    @classmethod
    def of_images(cls, *, flip: bool = False) -> Drift:
        """For images that a network knows by heart: one gentle pass that teaches the answers to shifted copies.

        With ``flip`` these are mirrored too: where left and right mean the same, not for digits.
        """
        return cls(active=0.0, decay=0.0, push=0.0, lr=0.01, views=Views(flip=flip))


def drift(
    task: Task,
    model: nn.Module,
    residual: Tensor,
    step: Tensors,
    how: Drift,
    *,
    block: Block,
    seed: int,
    force: float = 1.0,
    lesson: Lesson | None = None,
    denied: Denial | None = None,
) -> None:
    """Drift in place, with ``step`` the Newton step by parameter; ``force`` scales all but the training itself."""
    weights: list[Tensor] = list(trained_parameters(model).values())
    pushed = [step[name] for name in trained_parameters(model)]
    moves = None if how.everywhere else list(_mask(block, model).values())
    generator = torch.Generator().manual_seed(seed)
    total = how.epochs * math.ceil(len(residual) / how.batch_size)
    rates = [how.lr * (1 + math.cos(math.pi * at / total)) / 2 for at in range(total)]
    last_active = max(1, round(how.active * total)) if how.active else 0
    strength = force * how.push * (1 - how.momentum) / max(sum(rates[:last_active]), 1e-12)
    extra = force * max(0.0, how.decay - task.weight_decay)
    velocity = [torch.zeros_like(weight) for weight in weights]
    count = 0
    for _ in range(how.epochs):
        order = residual[torch.randperm(len(residual), generator=generator)]
        for batch in task.batches(order, how.batch_size):
            active = count < last_active
            with torch.enable_grad():
                loss = task.losses(model, batch).mean()
                if lesson is not None:
                    loss = loss + force * lesson.loss(model)
                if denied is not None and active:
                    loss = loss + force * how.denial * denied.loss(model)
            slopes = list(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))
            with torch.no_grad():
                if how.clip is not None:
                    length = nn.utils.get_total_norm(slopes)
                    torch._foreach_mul_(slopes, how.clip / max(float(length), how.clip))
                torch._foreach_add_(slopes, weights, alpha=task.weight_decay + extra * active)
                if active:
                    torch._foreach_add_(slopes, pushed, alpha=-strength)
                if moves is not None:
                    torch._foreach_mul_(slopes, moves)
                torch._foreach_mul_(velocity, how.momentum)
                torch._foreach_add_(velocity, slopes)
                torch._foreach_add_(weights, velocity, alpha=-rates[count])
            count += 1


def _mask(block: Block, model: nn.Module) -> dict[str, Tensor]:
    """1 where the block is, 0 elsewhere."""
    like = trainable(model)
    return block.scatter(torch.ones(block.size(like)), like)
