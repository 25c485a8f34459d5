"""What a deletion would do, said before anything happens: which samples, of which classes, and what to expect of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from excise.ledger.expectation import Answered, Expectation, Seen, expectation, held_out_count, whole_numbers
from excise.task import ids as checks
from excise.task.ids import Ids
from excise.task.targets import targets_of
from excise.task.task import Task
from excise.unlearning.forgotten import counted

SHOWN = 20  # positions and classes in a summary


@dataclass(frozen=True)
class LastRequest:
    """What the last request took and came to, as the best guess for the next one."""

    method: str
    samples: int
    seconds: float
    forget_loss: tuple[float, float]
    """Of its samples, before and after."""
    verdict: str | None = None
    """Of its audit; None where there was none."""


@dataclass(frozen=True)
class Preview:
    """A deletion, looked at beforehand. It names samples: show it to those who may know them, and do not store it."""

    positions: tuple[int, ...]
    """In the training set, of the samples that would be forgotten, in rising order."""
    already: tuple[int, ...]
    """Of those asked for that are forgotten already."""
    left: int
    """How many samples would be retained."""
    classes: dict[int, int]
    """How many samples of each class; empty where targets are no classes."""
    whole_classes: tuple[int, ...]
    """The classes of which no sample would be left."""
    now: Answered | None
    """Loss and accuracy of the samples as the model is; None where there is nothing to forget."""
    expected: Expectation | None
    """What to expect of them once forgotten; None where nothing tells."""
    has_test_set: bool
    last: LastRequest | None = None

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values; what is not finite is None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def summary(self) -> str:
        """All of it in a few lines."""
        return "\n".join([*self._what(), *self._change(), self._cost()])

    def _what(self) -> list[str]:
        where = f", at {_listed(self.positions)}" if self.positions else ""
        lines = [f"to forget: {counted(len(self.positions), 'sample')}{where}"]
        if self.already:
            lines.append(f"forgotten already: {counted(len(self.already), 'sample')}, at {_listed(self.already)}")
        if self.classes:
            lines.append(f"of class {_listed([f'{label} ({number:,})' for label, number in self.classes.items()])}")
        lines.append(f"retained: {counted(self.left, 'sample')}")
        if not self.left:
            lines.append("nothing would be left: such a request is refused; train a new model instead")
        elif self.whole_classes:
            lines.append(
                f"no sample would be left of class {_listed(self.whole_classes)}, which is then never answered"
            )
        return lines

    def _change(self) -> list[str]:
        if self.now is None:
            return []
        lines, found = [f"as the model is: {_figures(self.now)}"], self.expected
        if not self.has_test_set:
            return [*lines, "expected change: unknown, since the task has no test_set to compare with"]
        if found is None:
            return [*lines, "expected change: unknown, since no held-out sample is of a class that stays"]
        some = "" if found.samples == len(self.positions) else f" of {counted(found.samples, 'sample')}"
        alike = " of the same classes" if self.classes else ""
        lines.append(f"{counted(found.held_out, 'held-out sample')}{alike}: {_figures(found.then)}")
        points = ""
        if found.then.accuracy is not None and found.now.accuracy is not None:
            points = f", accuracy {100 * (found.then.accuracy - found.now.accuracy):+.1f} points"
        return [*lines, f"expected change{some}: loss {found.then.loss - found.now.loss:+.4f}{points}"]

    def _cost(self) -> str:
        if self.last is None:
            return "cost and verdict: unknown, since there was no request before"
        last = self.last
        return (
            f"the last request, of {counted(last.samples, 'sample')} by {last.method}, took {last.seconds:.2f} s: loss "
            f"{last.forget_loss[0]:.4f} before, {last.forget_loss[1]:.4f} after; verdict: {last.verdict or 'no audit'}"
        )


def preview(task: Task, model: nn.Module, positions: Ids, gone: Ids = (), last: LastRequest | None = None) -> Preview:
    """Look at samples that are to be forgotten, by what the model says of them and of held-out ones; nothing changes.

    A sample that was forgotten is answered like one that was never seen. So the answers to held-out samples of the same
    classes, in the same mix, tell what to expect.

    Args:
        task: Data and objective.
        model: The model as it is now.
        positions: Of the samples; those that are gone already are told apart. There may be none.
        gone: Positions of all samples that are forgotten already.
        last: The last request, for its cost and verdict.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]))
    >>> task = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
    >>> _ = nn.init.zeros_(task.model.bias)
    >>> print(preview(task, task.model, [0, 2, 3], gone=[0]).summary())
    to forget: 2 samples, at 2, 3
    forgotten already: 1 sample, at 0
    of class 1 (2)
    retained: 1 sample
    no sample would be left of class 1, which is then never answered
    as the model is: loss 0.6931, accuracy 0.0%
    expected change: unknown, since the task has no test_set to compare with
    cost and verdict: unknown, since there was no request before
    """
    count = len(task.train_set)
    named, before = _checked(positions, count), _checked(gone, count)
    asked = sorted(named - before)
    seen = Seen.of(task, model, asked) if asked else None
    classes = {} if seen is None else dict(sorted(seen.classes().items()))
    emptied = _emptied(task, classes, before | named) if classes else ()
    return Preview(
        positions=tuple(asked),
        already=tuple(sorted(named & before)),
        left=count - len(before | named),
        classes=classes,
        whole_classes=emptied,
        now=None if seen is None else seen.mean(),
        expected=None if seen is None else expectation(task, model, seen, emptied),
        has_test_set=held_out_count(task) > 0,
        last=last,
    )


def _checked(given: Ids, count: int) -> set[int]:
    return set(checks.positions(given, count).tolist()) if len(given) else set()


def _emptied(task: Task, classes: dict[int, int], gone: set[int]) -> tuple[int, ...]:
    """The classes of which no sample stays."""
    labels = whole_numbers(targets_of(task))
    stay = np.ones(len(labels), dtype=bool)
    stay[sorted(gone)] = False
    return tuple(sorted(set(classes) - set(labels[stay].tolist())))


def _figures(found: Answered) -> str:
    return f"loss {found.loss:.4f}" + ("" if found.accuracy is None else f", accuracy {found.accuracy:.1%}")


def _listed(things: Sequence[Any]) -> str:
    more = f" and {len(things) - SHOWN:,} more" if len(things) > SHOWN else ""
    return ", ".join(map(str, things[:SHOWN])) + more


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
