"""Answers that a request must not spoil: those to retained samples, and to held-out ones of classes that stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excise.task.losses import no_class
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task

MOST_RETAINED, MOST_HELD_OUT, LEAST = 1000, 4000, 128  # fewer where inputs are large: every request looks at them
CHANCE = 2.0  # standard deviations of answers that change for no reason


def right_answers(task: Task, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """1 for a right answer, 0 for a wrong one, NaN for a sample without a label; None where targets are no classes.

    >>> data = torch.utils.data.TensorDataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    >>> task = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
    >>> right_answers(task, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [1.0, 0.0]
    """
    if type(task.loss_module) is nn.BCEWithLogitsLoss and outputs.numel() == len(outputs):
        return ((outputs.reshape(-1) > 0) == (targets.reshape(-1) > 0.5)).double().cpu()
    classes = outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1
    if not classes or targets.is_floating_point() or targets.is_complex():
        return None
    right = (outputs.argmax(1) == targets).double()
    return right.masked_fill(targets == no_class(task.loss_module), torch.nan).cpu()


def points_lost(before: Tensor, after: Tensor) -> float:
    """How many points of accuracy are lost, by which samples were right before and are after.

    Answers change for no reason as well: within two standard deviations of that nothing is lost, and beyond them one
    does not count. To count both as chance would let harm pass where samples are few, and none would stop what
    retraining changes, too.

    >>> all_right = torch.ones(100, dtype=torch.bool)
    >>> points_lost(all_right, all_right), points_lost(all_right, ~all_right)
    (0.0, 90.0)
    >>> points_lost(all_right, all_right & (torch.arange(100) > 2))  # three of a hundred
    0.0
    """
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    by_chance = math.sqrt(lost + won)
    return 0.0 if lost - won <= CHANCE * by_chance else 100 * (lost - won - by_chance) / len(before)


@dataclass(frozen=True)
class _Seen:
    """Some samples, their classes, and which of them a model answers right."""

    ids: Tensor
    classes: Tensor
    right: Tensor

    def at(self, which: Tensor) -> _Seen:
        return _Seen(self.ids[which], self.classes[which], self.right[which])


@dataclass(frozen=True)
class Answers:
    """Which answers of a model to retained and held-out samples are right."""

    retained: _Seen
    held_out: _Seen

    @staticmethod
    def of(task: Task, model: nn.Module, ids: Tensor, seed: int) -> Answers | None:
        """Of some of these samples and some of the test set; None where targets are no classes."""
        at_once = task.batch_size_within_memory(64)
        retained = _seen(task, model, ids[: max(LEAST, min(MOST_RETAINED, 16 * at_once))])
        order = torch.randperm(_length(task.test_set), generator=torch.Generator().manual_seed(seed))
        held_out = _seen(task, model, order[: max(LEAST, min(MOST_HELD_OUT, 64 * at_once))], task.test_set)
        return None if retained is None or held_out is None else Answers(retained, held_out)

    def under(self, task: Task, model: nn.Module) -> Answers:
        """The same samples, answered by another model."""
        retained = _seen(task, model, self.retained.ids)
        held_out = _seen(task, model, self.held_out.ids, task.test_set)
        return self if retained is None or held_out is None else Answers(retained, held_out)

    def without(self, task: Task, ids: Sequence[int], gone: Collection[int]) -> Answers:
        """Without the samples that are gone, and without held-out ones of a class that goes with ``ids``."""
        stay = self.retained.at(~torch.isin(self.retained.ids, torch.tensor(list(gone), dtype=torch.long)))
        asked = torch.cat([task.targets_in(batch).reshape(-1).round().long().cpu() for batch in task.batches(ids)])
        no_longer = asked[~torch.isin(asked, stay.classes)]
        return Answers(stay, self.held_out.at(~torch.isin(self.held_out.classes, no_longer)))

    def points_lost(self, task: Task, model: nn.Module) -> float:
        """How many points of accuracy a model loses against this one, where it loses most."""
        counted = self.retained, self.held_out
        now = _seen(task, model, counted[0].ids), _seen(task, model, counted[1].ids, task.test_set)
        return max(
            points_lost(before.right, after.right)
            for before, after in zip(counted, now, strict=True)
            if after is not None
        )


def _seen(task: Task, model: nn.Module, ids: Tensor, dataset: Any = None) -> _Seen | None:
    """What a model says about samples that have a label; None where targets are no classes."""
    if not len(ids):
        return _Seen(ids, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool))

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, targets = task.outputs(model, batch)
        plain = task.plain_targets(targets)
        found = right_answers(task, outputs, plain)
        if found is None:
            return torch.full((len(outputs),), torch.inf, dtype=torch.double), torch.zeros(len(outputs)).long()
        return found, plain.reshape(-1).round().long().cpu()

    with torch.no_grad():
        size = task.batch_size_within_memory(256)
        every, labels = rows_over(task, ids, of_batch, size, "answers", dataset=dataset)
    if bool(every.isinf().any()):
        return None
    labelled = ~every.isnan()
    return _Seen(ids[labelled], labels[labelled], every[labelled] > 0)


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0
