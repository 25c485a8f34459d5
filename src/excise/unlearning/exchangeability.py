"""How long a step must be, by exchangeability: a retained sample, once forgotten, should look like a held-out one.

Newton's direction is right more often than its length. A network that was not trained to the end, or with a weight
decay that is not known, may need a third of it, and the whole of it would ruin samples that were hardly memorised. No
retraining is needed to find out. Groups of retained samples are forgotten one after the other, at several lengths, and
at the right one all retained samples would have the mean loss of held-out samples of the same classes.

Few samples make up most of that loss, and three hundred that were drawn with equal chances would have too few of them:
the length would differ from draw to draw by a sixth. So samples of large loss are drawn rather than others, each counts
as many times as it stands for, and only the rise of the loss is told by them: where it starts is known of all.

A request's own samples don't tell its length, where they happen to be among those on trial: wrong labels, once they
are forgotten, have more loss than all other samples together, and no held-out sample is like them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise import processes
from excise._support.sampling import draw_by_loss
from excise.curvature.strategies import InverseCurvature
from excise.errors import InputError, NothingForgotten
from excise.slices.slices import Block
from excise.task import objective
from excise.task.losses import NO_CLASS, no_class
from excise.task.parameters import move, trainable
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task
from excise.unlearning.convergence import require_finite

FINE = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
COARSE = (2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0)  # for a weight decay that was guessed too large
LENGTHS = (*FINE, *COARSE)
"""Multiples of the Newton step that are tried; between them the loss is taken for linear."""
GROUP = 40  # samples that are forgotten together
MOST_OF_SET = 0.02  # of the training set: a larger group would show what a larger request does
HELD_OUT = 4000  # samples of the test set that tell the loss of unseen samples
FEWEST_HELD_OUT = 30
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Length:
    """The multiple of the Newton step at which forgotten samples look like held-out ones."""

    value: float
    known_loss: float
    """Mean loss of retained samples before any is forgotten."""
    held_out_loss: float
    """Mean loss of held-out samples of the same classes, which they should have then."""
    reached: bool
    """Whether any length that was tried gives it."""


@dataclass(frozen=True)
class Known:
    """What is known of retained samples before any is forgotten."""

    ids: Tensor
    losses: Tensor
    aims: Tensor
    """For each sample, the mean loss of held-out samples of its class."""
    noise: float = 0.0
    """Standard error of the mean of these."""

    @property
    def rise(self) -> float:
        """By how much their mean loss must rise to be that of held-out samples."""
        return float((self.aims - self.losses).mean())

    @property
    def trust(self) -> float:
        """What share of the rise to believe, as few held-out samples tell it with noise (James and Stein's).

        >>> Known(torch.arange(2), torch.zeros(2), torch.ones(2), noise=0.5).trust  # 1 / (1 + 0.5²)
        0.8
        """
        return self.rise**2 / (self.rise**2 + self.noise**2) if self.rise else 0.0

    def without(self, gone: Tensor) -> Known:
        """Of those that are not gone."""
        left = ~torch.isin(self.ids, gone)
        return Known(self.ids[left], self.losses[left], self.aims[left], self.noise)

    @staticmethod
    def of(task: Task, model: nn.Module, ids: Tensor, seed: int) -> Known:
        """Look at these samples, and at held-out ones."""
        unseen, seen = HeldOutLoss.of(task, model, seed), _Seen.of(task, model, ids)
        return Known(ids, seen.losses, seen.weights * unseen.of_each(seen.labels))


@dataclass(frozen=True)
class Trials:
    """Retained samples, some of which were forgotten on trial, at every length."""

    known: Known
    drawn: Tensor
    """Which of them were forgotten, as positions among those that are known."""
    counts: Tensor
    """How many samples each of these stands for."""
    rises: Tensor
    """Of their losses, lengths × samples."""

    def length(self, without: Collection[int] = ()) -> Length:
        """The one that gives retained samples the mean loss of held-out ones, by those of them that stay."""
        stay = ~torch.isin(self.known.ids, torch.tensor(list(without), dtype=torch.long))
        if not bool(stay[self.drawn].any()):
            stay = torch.ones_like(stay)  # nothing else is known
        on_trial = stay[self.drawn]
        rise = (self.rises[:, on_trial] * self.counts[on_trial]).sum(1) / stay.sum()
        known, aim = float(self.known.losses[stay].mean()), float(self.known.aims[stay].mean())
        losses = known + rise.numpy()
        return Length(crossing(losses, aim), known, aim, bool(losses[np.isfinite(losses)].max() >= aim))


def forget_on_trial(
    task: Task,
    model: nn.Module,
    inverse: InverseCurvature,
    block_of: Callable[[Tensor], Block],
    known: Known,
    *,
    groups: int,
    seed: int,
) -> Trials:
    """Forget groups of these retained samples at several lengths, each on its block."""
    drawn, inclusion = draw_by_loss(known.losses, _count(task, known.ids, groups), torch.Generator().manual_seed(seed))
    tried = known.ids[drawn].tensor_split(min(groups, len(drawn)))
    curves = processes.each(list(tried), _Curve(task, model, inverse, block_of), "lengths on trial")
    return Trials(known, drawn, 1 / inclusion, torch.cat(curves, 1) - known.losses[drawn])


def crossing(losses: Floats, aim: float) -> float:
    """The first length at which the loss has risen to the aim; the last one before it falls or fails, if none has.

    >>> crossing(np.array([0.0, 1.0, *[2.0] * 19]), 0.5), crossing(np.ones(21), 0.5)
    (0.025, 0.0)
    """
    if losses[0] >= aim:
        return 0.0
    for number in range(1, len(LENGTHS)):
        if not np.isfinite(losses[number]) or losses[number] < losses[number - 1]:
            return LENGTHS[number - 1]
        if losses[number] >= aim:
            share = (aim - losses[number - 1]) / (losses[number] - losses[number - 1])
            return float(LENGTHS[number - 1] + share * (LENGTHS[number] - LENGTHS[number - 1]))
    return LENGTHS[-1]


def _count(task: Task, ids: Tensor, groups: int) -> int:
    """How many samples are forgotten on trial, in so many groups."""
    return groups * max(1, min(GROUP, int(MOST_OF_SET * len(task.train_set)), len(ids) // groups))


@dataclass(frozen=True)
class _Curve:
    """Of a group of samples, their losses at every length of its own step: lengths × samples."""

    task: Task
    model: nn.Module
    inverse: InverseCurvature
    block_of: Callable[[Tensor], Block]

    def __call__(self, group: Tensor) -> Tensor:
        task, block = self.task, self.block_of(group)
        downhill = objective.removal_gradient(task, self.model, group, len(task.train_set) - len(group))
        step = self.inverse.solve(self.model, block, block.gather(downhill), without=group.tolist())
        start, batches = copy.deepcopy(trainable(self._trial)), list(task.batches(group))  # read once for all lengths
        losses, change = [], block.scatter(step, start)
        with torch.no_grad():
            for length in LENGTHS:
                move(self._trial, start, {name: length * one for name, one in change.items()})
                losses.append(torch.cat([task.losses(self._trial, batch) for batch in batches]).double().cpu())
        move(self._trial, start, {})
        return torch.stack(losses)

    @cached_property
    def _trial(self) -> nn.Module:
        """A copy that all groups are forgotten from, one after the other."""
        return copy.deepcopy(self.model)


def nothing_to_forget(known_loss: float, held_out_loss: float) -> NothingForgotten:
    """The error that a model knows its training samples no better than others, or that no length tells it."""
    if known_loss < held_out_loss:
        return NothingForgotten(
            "samples that were forgotten on trial have less loss than before, though the mean loss is "
            f"{known_loss:.3g} on samples that the model was trained on and {held_out_loss:.3g} on held-out ones; so "
            "nothing tells how far to go, and nothing is forgotten. Another method (--method step) takes a step all "
            "the same."
        )
    return NothingForgotten(
        f"the model's mean loss is {known_loss:.3g} on samples that it was trained on and {held_out_loss:.3g} on "
        "held-out ones: it knows the first no better, so no step was taken and nothing is forgotten. Another method "
        "(--method step) takes one all the same."
    )


def held_out_ids(task: Task, seed: int) -> Tensor:
    """Positions in the test set of those of its samples that are looked at."""
    count = 0 if task.test_set is None else len(task.test_set)
    if count < FEWEST_HELD_OUT:
        raise InputError(
            f"test_set has {count} samples, and the length of a step is found by {FEWEST_HELD_OUT} or more that "
            "the model never saw: pass more of them to Task, or choose a length by Step(size=...)."
        )
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:HELD_OUT]


@dataclass(frozen=True)
class HeldOutLoss:
    """Mean loss of samples that the model never saw, by class where they have one."""

    mean: float
    by_class: dict[int, float]
    error: float
    """Standard error of the mean,"""
    errors: dict[int, float]
    """and of those of classes."""
    no_class: int = NO_CLASS
    """The label of samples that have none."""

    @staticmethod
    def of(task: Task, model: nn.Module, seed: int) -> HeldOutLoss:
        """Look at some of the test samples."""
        ids = held_out_ids(task, seed)
        seen = _Seen.of(task, model, ids, task.test_set)
        return HeldOutLoss.by(task, ids, seen.plain, seen.labels)

    @staticmethod
    def by(task: Task, ids: Tensor, losses: Tensor, labels: Tensor) -> HeldOutLoss:
        """From what is known of them: losses as if all samples weighed the same. Those without a label don't count."""
        require_finite(losses, ids.tolist(), "test_set")
        if not _are_classes(labels):
            return HeldOutLoss(float(losses.mean()), {}, _standard_error(losses), {})
        has_label = labels != no_class(task.loss_module)
        if int(has_label.sum()) < 2:
            raise InputError(
                f"test_set has {int(has_label.sum())} samples with a label among {len(labels)}, so it can't tell how "
                "well unseen samples are known; pass labelled ones."
            )
        losses, labels = losses[has_label], labels[has_label]
        of_class = {int(label): losses[labels == label] for label in labels.unique()}
        return HeldOutLoss(
            mean=float(losses.mean()),
            by_class={label: float(some.mean()) for label, some in of_class.items()},
            error=_standard_error(losses),
            errors={label: _standard_error(some, losses) for label, some in of_class.items()},
            no_class=no_class(task.loss_module),
        )

    def noise(self, labels: Tensor) -> float:
        """Standard error of the mean of what samples of these classes should have."""
        if not self.by_class or not _are_classes(labels):
            return self.error
        classes, counts = labels.unique(return_counts=True)
        shares = dict(zip(classes.tolist(), (counts / len(labels)).tolist(), strict=True))
        missing = sum(share for label, share in shares.items() if label not in self.errors)
        return math.hypot(missing * self.error, *(shares.get(label, 0.0) * one for label, one in self.errors.items()))

    def of_each(self, labels: Tensor) -> Tensor:
        """For samples of these classes, the mean loss of held-out ones; a class without any counts as the mean."""
        if not self.by_class or not _are_classes(labels):
            return torch.full((len(labels),), self.mean, dtype=torch.double)
        labelled = labels[labels != self.no_class].tolist()
        if 2 * sum(label in self.by_class for label in labelled) < len(labelled):
            raise InputError(
                f"test_set has samples of the classes {sorted(self.by_class)} alone, and most retained samples are of "
                "others, so it can't tell what unseen samples look like: pass held-out samples of the same classes."
            )
        return torch.tensor([self.by_class.get(label, self.mean) for label in labels.tolist()], dtype=torch.double)


def _standard_error(losses: Tensor, others: Tensor | None = None) -> float:
    """Of their mean; a single one is taken to spread as the others do."""
    spread = losses if others is None or len(losses) > 1 else others
    return float(spread.std()) / math.sqrt(len(losses))


def _are_classes(labels: Tensor) -> bool:
    return labels.ndim == 1 and not labels.is_floating_point()


@dataclass(frozen=True)
class _Seen:
    """Some samples under a model."""

    losses: Tensor
    plain: Tensor
    """Losses as if all weighed the same."""
    labels: Tensor
    """Classes; 0.0 where targets are none."""
    weights: Tensor
    """By which a loss is more than the plain one; 0 of a sample without a label."""

    @staticmethod
    def of(task: Task, model: nn.Module, ids: Tensor, dataset: Any = None) -> _Seen:
        """Samples of the training set, or of another."""

        def of_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            outputs, told = task.outputs(model, batch)
            losses = task.sample_losses(outputs, told)
            plain = losses if task.weighting is None else task.plain_losses(outputs, told)
            targets = task.plain_targets(told)
            labels = targets if _are_classes(targets) else torch.zeros(len(losses))
            return losses.double().cpu(), plain.double().cpu(), labels.cpu()

        with torch.no_grad():
            size = task.batch_size_within_memory(256)
            losses, plain, labels = rows_over(task, ids, of_batch, size, "losses on trial", dataset=dataset)
        weights = torch.where(plain > 0, losses / plain, 1.0)
        return _Seen(losses, plain, labels, weights * (labels != no_class(task.loss_module)))
