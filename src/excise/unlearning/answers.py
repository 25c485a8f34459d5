"""Answers that a request must not spoil: those to retained samples, and to held-out ones of classes that stay.

Which of them are right is watched, and how sure the model is of held-out ones, by their mean loss: networks whose step
is far too long lose that first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
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
HARMLESS = 0.01  # rise of the held-out loss: near 0 it can double without harm


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


def loss_risen(before: Tensor, after: Tensor, counts: Tensor | None = None) -> float:
    """By what share the mean loss has risen, where that is more than 0.01 and than chance, as above.

    What had no finite loss before, such as a sample of a class that a model rules out, can't tell.

    >>> round(loss_risen(torch.ones(100), 1.5 * torch.ones(100)), 6), loss_risen(torch.zeros(9), torch.full((9,), 0.01))
    (0.5, 0.0)
    """
    told = before.isfinite()
    shares = told.double() if counts is None else told * counts.double()
    shares = (shares / shares.sum().clamp_min(1e-12))[told]
    before, each = before[told].double(), (after - before)[told].double()
    risen = float(shares @ each)
    if not math.isfinite(risen):
        return math.inf
    by_chance = float((shares * (each - risen)).norm())
    if risen <= max(HARMLESS, CHANCE * by_chance):
        return 0.0
    return (risen - by_chance) / max(float(shares @ before), 1e-12)


@dataclass(frozen=True)
class Harm:
    """What a request costs."""

    points: float
    """Of accuracy, on retained or held-out samples, whichever is more."""
    loss: float
    """Share by which the mean loss of held-out samples has risen."""


@dataclass(frozen=True)
class _Seen:
    """Some samples, their classes, and which of them a model answers right."""

    ids: Tensor
    classes: Tensor
    right: Tensor
    losses: Tensor
    leads: Tensor
    """By how much the answer that is given is ahead of the next one."""
    counts: Tensor
    """How many samples each stands for."""

    def at(self, which: Tensor) -> _Seen:
        return _Seen(*(getattr(self, field.name)[which] for field in fields(self)))

    def drawn(self, count: int, seed: int) -> _Seen:
        """So many, of which those that are unsure are drawn rather than others: their answers change first."""
        sizes = torch.sigmoid(-self.leads).sqrt() + HARDLY
        which, inclusion = draw_proportionally(sizes, min(count, len(sizes)), torch.Generator().manual_seed(seed))
        return replace(self.at(which), counts=self.counts[which] / inclusion)


@dataclass(frozen=True)
class Answers:
    """Which answers of a model to retained and held-out samples are right; all, where targets are no classes."""

    retained: _Seen
    held_out: _Seen

    @staticmethod
    def of(task: Task, model: nn.Module, ids: Tensor, seed: int) -> Answers:
        """Of some of these samples and some of the test set."""
        at_once = task.batch_size_within_memory(64)
        retained = _seen(task, model, ids[: max(LEAST, min(MOST_RETAINED, 16 * at_once))])
        order = torch.randperm(_length(task.test_set), generator=torch.Generator().manual_seed(seed))
        held_out = _seen(task, model, order[: max(LEAST, min(MOST_HELD_OUT, 64 * at_once))], task.test_set)
        return Answers(retained.drawn(ASKED_RETAINED, seed), held_out.drawn(ASKED_HELD_OUT, seed))

    def under(self, task: Task, model: nn.Module) -> Answers:
        """The same samples, answered by another model."""
        retained, held_out = self._now(task, model)
        counts = self.retained.counts, self.held_out.counts
        return Answers(replace(retained, counts=counts[0]), replace(held_out, counts=counts[1]))

    def without(self, task: Task, ids: Sequence[int], gone: Collection[int], residual: Tensor) -> Answers:
        """Without the samples that are gone, and without held-out ones of a class of which none of ``residual`` is."""
        stay = self.retained.at(~torch.isin(self.retained.ids, torch.tensor(list(gone), dtype=torch.long)))
        asked = torch.cat([_classes(task, batch) for batch in task.batches(ids)]).unique()
        missing = asked[torch.isin(asked, self.held_out.classes) & ~torch.isin(asked, stay.classes)]
        no_longer = classes_gone(task, missing, residual)
        return Answers(stay, self.held_out.at(~torch.isin(self.held_out.classes, no_longer)))

    def harm(self, task: Task, model: nn.Module) -> Harm:
        """What a model has lost against this one."""
        retained, held_out = self._now(task, model)
        pairs = (self.retained, retained), (self.held_out, held_out)
        points = max(points_lost(before.right, after.right, before.counts) for before, after in pairs)
        return Harm(points, loss_risen(self.held_out.losses, held_out.losses, self.held_out.counts))

    def _now(self, task: Task, model: nn.Module) -> tuple[_Seen, _Seen]:
        """The same samples under another model, each counting once."""
        return _seen(task, model, self.retained.ids), _seen(task, model, self.held_out.ids, task.test_set)


def classes_gone(task: Task, classes: Tensor, residual: Tensor) -> Tensor:
    """Those of the classes of which no retained sample is; it is looked until there is one of each."""
    gone = classes
    for batch in task.batches(residual) if len(classes) else ():
        gone = gone[~torch.isin(gone, _classes(task, batch))]
        if not len(gone):
            break
    return gone


def _classes(task: Task, batch: Batch) -> Tensor:
    """The class of each sample; 0 where targets are none."""
    targets = task.targets_in(batch)
    if targets.is_complex() or targets.numel() != len(targets):
        return torch.zeros(len(targets), dtype=torch.long)
    return targets.reshape(-1).round().long().cpu()


def _seen(task: Task, model: nn.Module, ids: Tensor, dataset: Any = None) -> _Seen:
    """What a model says about samples that have a label; where targets are no classes all counts as right."""
    if not len(ids):
        none = torch.zeros(0)
        return _Seen(ids, none.long(), none.bool(), none, none, none)

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs, targets = task.outputs(model, batch)
        plain = task.plain_targets(targets)
        found, losses = right_answers(task, outputs, plain), task.plain_losses(outputs, targets).double().cpu()
        if found is None:
            same = torch.zeros(len(outputs))
            return torch.ones_like(losses), same.long(), losses, same
        return found, plain.reshape(-1).round().long().cpu(), losses, _leads(outputs)

    with torch.no_grad():
        size = task.batch_size_within_memory(256)
        every, labels, losses, leads = rows_over(task, ids, of_batch, size, "answers", dataset=dataset)
    labelled = ~every.isnan()
    return _Seen(ids, labels, every > 0, losses, leads, torch.ones(len(ids))).at(labelled)


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
