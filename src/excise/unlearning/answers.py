"""Answers that a request must not spoil: those to retained samples, and to held-out ones of classes that stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.sampling import draw_proportionally
from excise.task.losses import no_class
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task

MOST_RETAINED, MOST_HELD_OUT, LEAST = 1000, 4000, 128  # that are looked at once; fewer where inputs are large
ASKED_RETAINED, ASKED_HELD_OUT = 500, 1000  # of these, that every request looks at
HARDLY = 0.1  # the size by which the surest of them are drawn, where the others have up to 0.7 more
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


def points_lost(before: Tensor, after: Tensor, counts: Tensor | None = None) -> float:
    """How many points of accuracy are lost, by which samples were right before and are after.

    Answers change for no reason as well: within two standard deviations of that nothing is lost, and beyond them one
    does not count. To count both as chance would let harm pass where samples are few, and none would stop what
    retraining changes, too. Each sample counts as often as ``counts`` says.

    >>> all_right = torch.ones(100, dtype=torch.bool)
    >>> points_lost(all_right, all_right), points_lost(all_right, ~all_right)
    (0.0, 90.0)
    >>> points_lost(all_right, all_right & (torch.arange(100) > 2))  # three of a hundred
    0.0
    """
    counts = torch.ones(len(before)) if counts is None else counts
    lost = float(counts[before].sum() - counts[after].sum())
    by_chance = float(counts[before ^ after].norm())
    return 0.0 if lost <= CHANCE * by_chance else 100 * (lost - by_chance) / float(counts.sum())


@dataclass(frozen=True)
class _Seen:
    """Some samples, their classes, and which of them a model answers right."""

    ids: Tensor
    classes: Tensor
    right: Tensor
    leads: Tensor
    """By how much the answer that is given is ahead of the next one."""
    counts: Tensor
    """How many samples each stands for."""

    def at(self, which: Tensor) -> _Seen:
        return _Seen(self.ids[which], self.classes[which], self.right[which], self.leads[which], self.counts[which])

    def drawn(self, count: int, seed: int) -> _Seen:
        """So many, of which those that are unsure are drawn rather than others: their answers change first."""
        sizes = torch.sigmoid(-self.leads).sqrt() + HARDLY
        which, inclusion = draw_proportionally(sizes, min(count, len(sizes)), torch.Generator().manual_seed(seed))
        return replace(self.at(which), counts=self.counts[which] / inclusion)


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
        if retained is None or held_out is None:
            return None
        return Answers(retained.drawn(ASKED_RETAINED, seed), held_out.drawn(ASKED_HELD_OUT, seed))

    def under(self, task: Task, model: nn.Module) -> Answers:
        """The same samples, answered by another model."""
        retained, held_out = self._now(task, model)
        if retained is None or held_out is None:
            return self
        counts = self.retained.counts, self.held_out.counts
        return Answers(replace(retained, counts=counts[0]), replace(held_out, counts=counts[1]))

    def without(self, task: Task, ids: Sequence[int], gone: Collection[int]) -> Answers:
        """Without the samples that are gone, and without held-out ones of a class that goes with ``ids``."""
        stay = self.retained.at(~torch.isin(self.retained.ids, torch.tensor(list(gone), dtype=torch.long)))
        asked = torch.cat([task.targets_in(batch).reshape(-1).round().long().cpu() for batch in task.batches(ids)])
        no_longer = asked[~torch.isin(asked, stay.classes)]
        return Answers(stay, self.held_out.at(~torch.isin(self.held_out.classes, no_longer)))

    def points_lost(self, task: Task, model: nn.Module) -> float:
        """How many points of accuracy a model loses against this one, where it loses most."""
        return max(
            points_lost(before.right, after.right, before.counts)
            for before, after in zip((self.retained, self.held_out), self._now(task, model), strict=True)
            if after is not None
        )

    def _now(self, task: Task, model: nn.Module) -> tuple[_Seen | None, _Seen | None]:
        """The same samples under another model, each counting once."""
        return _seen(task, model, self.retained.ids), _seen(task, model, self.held_out.ids, task.test_set)


def _seen(task: Task, model: nn.Module, ids: Tensor, dataset: Any = None) -> _Seen | None:
    """What a model says about samples that have a label; None where targets are no classes."""
    if not len(ids):
        none = torch.zeros(0)
        return _Seen(ids, none.long(), none.bool(), none, none)

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        outputs, targets = task.outputs(model, batch)
        plain = task.plain_targets(targets)
        found = right_answers(task, outputs, plain)
        if found is None:
            none = torch.zeros(len(outputs))
            return torch.full((len(outputs),), torch.inf, dtype=torch.double), none.long(), none
        return found, plain.reshape(-1).round().long().cpu(), _leads(outputs)

    with torch.no_grad():
        size = task.batch_size_within_memory(256)
        every, labels, leads = rows_over(task, ids, of_batch, size, "answers", dataset=dataset)
    if bool(every.isinf().any()):
        return None
    labelled = ~every.isnan()
    return _Seen(ids, labels, every > 0, leads, torch.ones(len(ids))).at(labelled)


def _leads(outputs: Tensor) -> Tensor:
    """By how much each answer is ahead of the next one; 0 where that can't be told."""
    if outputs[0].numel() == 1:
        ahead = outputs.reshape(-1).abs()
    else:
        best = outputs.topk(2, dim=1).values
        ahead = best[:, 0] - best[:, 1]
    return ahead.float().nan_to_num(nan=0.0).cpu()


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0
