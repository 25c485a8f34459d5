"""The guard: no method may harm what the model still has to do.

Samples of the retained and of the held-out data tell, after every step, whether the rest of the model still works.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.checks import is_number, require, whole
from excise._support.sampling import draw_by_loss
from excise.errors import InputError
from excise.task.objective import losses_on
from excise.task.task import Task
from excise.unlearning.answers import Answers, Harm
from excise.unlearning.convergence import require_finite

MOST, LEAST = 64, 16


@dataclass(frozen=True)
class Guard:
    """How much accuracy a request may cost, and how much the mean loss of retained samples may rise by it."""

    factor: float = 1.5
    """To so many times what it was (that of held-out samples by half as much, beyond what may be chance),"""
    rise: float = 0.05
    """or by this much, which may always be: near 0 a loss can double without harm."""
    samples: int | None = None
    """How many retained samples tell that rise; None for 64, and fewer where inputs are large. Losses that are near 0
    but for a few samples need more, at the cost of every request."""
    points: float = 0.5
    """How many points of accuracy retained and held-out samples may lose, where they have classes. What may be chance
    does not count."""

    def __post_init__(self) -> None:
        require(is_number(self.factor) and self.factor >= 1, "factor", self.factor, "1 or more")
        require(is_number(self.rise) and self.rise >= 0, "rise", self.rise, "0 or more")
        if self.samples is not None:
            whole(self.samples, "samples")
        require(is_number(self.points) and self.points >= 0, "points", self.points, "0 or more")

    def limit(self, loss: float) -> float:
        """The most that a loss may become."""
        return max(self.factor * loss, loss + self.rise)

    def allows(self, harm: Harm) -> bool:
        """Whether a request may cost so much."""
        return harm.points <= self.points and harm.loss <= (self.factor - 1) / 2


DEFAULT_GUARD = Guard()


def checked_guard(guard: Any, method: Any) -> Guard | None:
    """The guard, where the method heeds one; one that was asked for and would be ignored is an error."""
    require(guard is None or isinstance(guard, Guard), "guard", guard, "a Guard or None")
    if method.heeds_guard:
        checked: Guard | None = guard
        return checked
    if guard is not None and guard is not DEFAULT_GUARD:
        name = getattr(method, "name", type(method).__name__)
        raise InputError(f"{name} does not heed guard; step and drift do. Leave it out, or pass guard=None.")
    return None


@dataclass(frozen=True)
class GuardSample:
    """Samples, drawn with preference for hard ones, whose weighted mean loss estimates that of all retained samples."""

    ids: Tensor
    weights: Tensor

    def losses(self, task: Task, model: nn.Module) -> Tensor:
        """The samples' losses."""
        return losses_on(task, model, self.ids).double().cpu()

    def mean(self, losses: Tensor, without: Collection[int] = ()) -> float:
        """Mean loss of retained samples, as far as these can tell; some of them may be forgotten by now."""
        kept = self.weights_without(without)
        return float(losses @ kept / kept.sum()) if kept.any() else float("nan")

    def weights_without(self, gone: Collection[int]) -> Tensor:
        """How much each sample counts: not at all where it is forgotten by now."""
        return self.weights * ~torch.isin(self.ids, torch.tensor(list(gone), dtype=torch.long))


def draw_guard_sample(
    task: Task, model: nn.Module, ids: Tensor, generator: torch.Generator, size: int | None = None
) -> GuardSample:
    """Draw one from the samples; by default a smaller one where inputs are large, since every request looks at it."""
    size = size or max(LEAST, min(MOST, 4 * task.batch_size_within_memory(MOST)))
    ids = ids[: 8 * size]
    losses = losses_on(task, model, ids).double().cpu()
    require_finite(losses, ids.tolist())
    drawn, inclusion = draw_by_loss(losses, size, generator)
    return GuardSample(ids[drawn], 1 / inclusion)


@dataclass(frozen=True)
class Retained:
    """Loss and answers of samples that a request must not harm."""

    task: Task
    sample: GuardSample
    guard: Guard | None
    before_each: Tensor
    """Losses of the guard's samples under the model before."""
    gone: frozenset[int]
    """What does not count as retained: all that is forgotten, by this request too."""
    answers: Answers | None = None
    """Under the model before; None where nothing guards them."""

    @staticmethod
    def unguarded(task: Task) -> Retained:
        """Of a request on trial, which is not held against anything."""
        none = torch.zeros(0, dtype=torch.double)
        return Retained(task, GuardSample(none.long(), none), None, none, frozenset())

    @property
    def before(self) -> float:
        """Mean loss before the request."""
        return self.mean(self.before_each)

    @property
    def limit(self) -> float:
        """The most that the mean loss may become."""
        return float("inf") if self.guard is None else self.guard.limit(self.before)

    def of_each(self, model: nn.Module) -> Tensor:
        """Losses of the guard's samples under a model."""
        return self.sample.losses(self.task, model)

    def mean(self, losses: Tensor) -> float:
        """Mean loss, from those of the guard's samples."""
        return self.sample.mean(losses, self.gone)

    def keeps(self, model: nn.Module, losses: Tensor) -> bool:
        """Whether the guard lets this model pass, by the losses of its samples and by its answers."""
        return self.mean(losses) <= self.limit and self.keeps_answers(model)

    def keeps_answers(self, model: nn.Module) -> bool:
        """Whether no more answers are spoilt than the guard allows."""
        if self.guard is None or self.answers is None:
            return True
        return self.guard.allows(self.answers.harm(self.task, model))
