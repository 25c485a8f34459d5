"""What to expect of samples once forgotten: what the model says of held-out ones, in the same mix of classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from excise.task.ids import Ids
from excise.task.predictions import predict
from excise.task.targets import targets_of
from excise.task.task import Task
from excise.unlearning.answers import right_answers

MOST_HELD_OUT, LEAST_OF_CLASS = 2000, 32  # held-out samples that are looked at
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answered:
    """Mean loss of samples, and the share that is answered rightly."""

    loss: float
    accuracy: float | None
    """None where targets are no classes."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a model says of each of some samples."""

    losses: Floats
    right: Floats | None
    """1 or 0, or NaN for a sample without a label; None where targets are no classes."""
    labels: Whole

    @staticmethod
    def of(task: Task, model: nn.Module, ids: Ids, *, dataset: Any = None) -> Seen:
        """By a pass over samples of the training set, or of another."""
        said = predict(task, model, ids, dataset=dataset)
        right = right_answers(task, torch.as_tensor(said.outputs), torch.as_tensor(said.targets))
        known = None if right is None else right.numpy().astype(np.float64)
        labels = np.zeros(len(said), dtype=np.int64) if right is None else whole_numbers(said.targets)
        return Seen(said.losses, known, labels)

    def classes(self) -> Counter[int]:
        """How many samples there are of each class; none where there are no classes."""
        return Counter() if self.right is None else Counter(self.labels[~np.isnan(self.right)].tolist())

    def at(self, which: Collection[int]) -> Seen:
        """Those of some classes; without classes, all."""
        if self.right is None:
            return self
        inside = np.isin(self.labels, list(which))
        return Seen(self.losses[inside], self.right[inside], self.labels[inside])

    def mean(self, mix: Counter[int] | None = None) -> Answered:
        """Over all, or as if there were so many of each class."""
        own = self.classes()
        weights = np.ones(len(self.losses))
        if mix:
            weights = np.array([mix[label] / own[label] for label in self.labels.tolist()])
        accuracy = None
        if self.right is not None and not np.isnan(self.right).all():
            labelled = ~np.isnan(self.right)
            accuracy = float(self.right[labelled] @ weights[labelled] / weights[labelled].sum())
        return Answered(float(self.losses @ weights / weights.sum()), accuracy)


@dataclass(frozen=True)
class Expectation:
    """Some samples, and held-out ones in the same mix of classes."""

    samples: int
    """How many: those of classes that stay, and of which there are held-out samples."""
    held_out: int
    now: Answered
    """The samples as the model is."""
    then: Answered
    """The held-out samples."""


def expectation(task: Task, model: nn.Module, seen: Seen, without: Collection[int] = ()) -> Expectation | None:
    """Compare samples with held-out ones of the same classes; None where there is nothing to compare with.

    Args:
        task: With its test set.
        model: The model as it is.
        seen: The samples.
        without: Classes of which nothing would be left: held-out samples say nothing of these.
    """
    chosen = _comparable(task, seen, without)
    if not len(chosen):
        return None
    others = Seen.of(task, model, chosen, dataset=task.test_set)
    mine = seen.at(others.classes())
    return Expectation(len(mine.losses), len(others.losses), mine.mean(), others.mean(mine.classes()))


def _comparable(task: Task, seen: Seen, without: Collection[int]) -> Whole:
    """Positions of held-out samples: of each class enough, or some of all where there are no classes."""
    everyone = np.arange(held_out_count(task))
    if seen.right is None or not len(everyone):
        return _some(everyone, MOST_HELD_OUT)
    labels = whole_numbers(targets_of(task, dataset=task.test_set))
    wanted = sorted(set(seen.classes()) - set(without))
    most = max(LEAST_OF_CLASS, MOST_HELD_OUT // max(1, len(wanted)))
    return np.concatenate([everyone[:0], *(_some(everyone[labels == label], most) for label in wanted)])


def held_out_count(task: Task) -> int:
    """How many held-out samples the task has that can be looked at."""
    data = task.test_set
    return len(data) if hasattr(data, "__len__") and hasattr(data, "__getitem__") else 0


def whole_numbers(targets: NDArray[Any]) -> Whole:
    """Classes: with one output for two of them they are 0.0 and 1.0, or near.

    >>> whole_numbers(np.array([[0.0], [1.0]])).tolist()
    [0, 1]
    """
    found: Whole = np.rint(targets.reshape(-1)).astype(np.int64)
    return found


def _some(places: Whole, most: int) -> Whole:
    """So many of them at the most, always the same ones."""
    return places if len(places) <= most else np.sort(np.random.default_rng(0).choice(places, most, replace=False))
