"""Removing samples one after another, and how many removals a model supports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from excise._support.checks import require
from excise._support.progress import Bar
from excise.errors import InputError, NothingForgotten
from excise.task import ids
from excise.unlearning.unlearner import Unlearner

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Supported:
    """How many removals a score bears.

    >>> print(Supported(18, 0.05, ended=True))
    18 removals until the score falls by more than 0.05
    >>> Supported(100, 0.05, ended=False).label
    '> 100'
    """

    removals: int
    drop: float
    """The threshold: by how much the score may fall."""
    ended: bool
    """Whether the score did fall by more; if not, all removals that were made are supported."""

    @property
    def label(self) -> str:
        """As in the paper's table."""
        return str(self.removals) if self.ended else f"> {self.removals}"

    def __str__(self) -> str:
        return f"{self.label} removals until the score falls by more than {self.drop:g}"


def supported_removals(removed: Sequence[int], scores: Sequence[float], *, drop: float) -> Supported:
    """How many samples can be removed until the score falls by more than ``drop`` below its first value.

    Args:
        removed: How many samples had been removed at each measurement, rising, 0 first.
        scores: The score then, such as an accuracy; higher is better.
        drop: The threshold.

    >>> supported_removals([0, 10, 20, 30], [0.90, 0.89, 0.84, 0.90], drop=0.05).removals
    10
    """
    require(drop >= 0, "drop", drop, "0 or more")
    if len(removed) != len(scores) or not len(removed) or removed[0] != 0:
        raise InputError("removed and scores must be of one length, and begin with the model before any removal.")
    last = 0
    for count, score in zip(removed, scores, strict=True):
        if not score >= scores[0] - drop - 1e-12:  # a score that is not a number has fallen
            return Supported(last, drop, ended=True)
        last = int(count)
    return Supported(last, drop, ended=False)


def all_but(gone: ids.Ids, count: int) -> NDArray[np.int64]:
    """Positions of the samples that are left of so many, as an array, which studies index their data by.

    >>> all_but([3, 0], 5).tolist()
    [1, 2, 4]
    """
    return np.asarray(ids.all_but(gone, count))


def one_at_a_time(
    unlearner: Unlearner, *, epsilon: float | None = None, delta: float | None = None
) -> Callable[[int], nn.Module]:
    """A function that makes the unlearner forget one more sample, and gives the model then."""
    return lambda sample: model_after(unlearner, [sample], epsilon=epsilon, delta=delta)


def model_after(
    unlearner: Unlearner, ids: Sequence[int], *, epsilon: float | None = None, delta: float | None = None
) -> nn.Module:
    """The model that has forgotten the samples; where the guard allows nothing, as it was, and scores show it."""
    with contextlib.suppress(NothingForgotten):
        unlearner.forget(ids, epsilon=epsilon, delta=delta)
    return unlearner.model


def remove_one_by_one(
    model: nn.Module,
    forget: Callable[[int], nn.Module],
    ids: Sequence[int],
    *,
    every: int,
    measure: Callable[[nn.Module, Sequence[int]], Scores],
    of_sample: Callable[[nn.Module, int], Scores] | None = None,
    bar: Bar | None = None,
) -> dict[str, list[float]]:
    """Remove samples one at a time, and measure the model now and then.

    Args:
        model: Before any removal.
        forget: Removes one more sample; gives the model without it.
        ids: The samples, in the order of their removal.
        every: Measure after so many removals, and after the last.
        measure: Scores of a model, given the samples removed so far.
        of_sample: Scores of a model and the sample that it has just forgotten, such as its gradient norm; what is
            reported is their mean over the removals since the measurement before (before the first: of the first
            sample, under the model as it was).
        bar: Is told of each removal.

    Returns:
        Columns of one length: ``"removed"``, and one for each score.
    """
    rows: list[dict[str, float]] = []
    waiting: list[Scores] = [] if of_sample is None else [of_sample(model, ids[0])]

    def note(current: nn.Module, gone: Sequence[int]) -> None:
        means = {name: float(np.mean([one[name] for one in waiting])) for name in (waiting[0] if waiting else ())}
        rows.append({"removed": len(gone), **measure(current, gone), **means})
        waiting.clear()

    note(model, ids[:0])
    for count, sample in enumerate(ids, 1):
        current = forget(sample)
        if of_sample is not None:
            waiting.append(of_sample(current, sample))
        if count % every == 0 or count == len(ids):
            note(current, ids[:count])
        if bar is not None:
            bar.advance(1)
    return {name: [row[name] for row in rows] for name in rows[0]}
