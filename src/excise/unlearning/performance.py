"""What a request does to the model: loss and accuracy of forgotten, retained and held-out samples, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excise.task.sharing import rows_over
from excise.task.task import Batch, Task
from excise.unlearning.answers import right_answers
from excise.unlearning.guard import Retained

HELD_OUT, LEAST_HELD_OUT = 256, 32  # samples of the test set, and of large inputs, since every request looks at them
Pair = tuple[float, float]


@dataclass(frozen=True)
class Performance:
    """How well a model does on some samples."""

    loss: float
    accuracy: float | None
    """None where the targets are no classes."""


@dataclass(frozen=True)
class Compared:
    """Before and after a request."""

    forget_loss: Pair
    retain_loss: Pair
    held_out_loss: Pair | None
    forget_accuracy: Pair | None
    retain_accuracy: Pair | None
    held_out_accuracy: Pair | None


@dataclass(frozen=True)
class Looked:
    """How well a model does on forgotten, retained and held-out samples."""

    forget: Performance
    retain: Performance | None
    """None where the targets are no classes, or nothing is retained of the guard's samples."""
    held_out: Performance | None
    """None without a test set."""


def look(task: Task, model: nn.Module, ids: list[int], retained: Retained, seed: int) -> Looked:
    """Look at a model, before a request or after it."""
    forget, kept, held_out = performance(task, model, ids), None, None
    weights = retained.sample.weights_without(retained.gone)
    if forget.accuracy is not None and bool(weights.any()):
        kept = performance(task, model, retained.sample.ids, weights=weights)
    if _length(task.test_set):
        held_out = performance(task, model, _held_out_ids(task, seed), dataset=task.test_set)
    return Looked(forget, kept, held_out)


def compared(before: Looked, after: Looked, retained: Retained, losses: Tensor) -> Compared:
    """Both models; the losses are those of the guard's samples under the second one."""
    held_out = None
    if before.held_out is not None and after.held_out is not None:
        held_out = before.held_out.loss, after.held_out.loss
    return Compared(
        forget_loss=(before.forget.loss, after.forget.loss),
        retain_loss=(retained.before, retained.mean(losses)),
        held_out_loss=held_out,
        forget_accuracy=_accuracies(before.forget, after.forget),
        retain_accuracy=_accuracies(before.retain, after.retain),
        held_out_accuracy=_accuracies(before.held_out, after.held_out),
    )


def performance(
    task: Task, model: nn.Module, ids: Sequence[int] | Tensor, *, weights: Tensor | None = None, dataset: Any = None
) -> Performance:
    """Mean loss and accuracy over samples of the training set, or of another; weights tell how much each counts."""

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, targets = task.outputs(model, batch)
        losses = task.sample_losses(outputs, targets).double().cpu()
        right = right_answers(task, outputs, task.plain_targets(targets))
        return losses, torch.full_like(losses, torch.inf) if right is None else right

    with torch.no_grad():
        size = task.batch_size_within_memory(256)
        losses, right = rows_over(task, ids, of_batch, size, "performance", dataset=dataset)
    share = torch.ones(len(ids), dtype=torch.double) if weights is None else weights.double()
    return Performance(_mean(losses, share), _accuracy(right, share))


def _accuracy(right: Tensor, weights: Tensor) -> float | None:
    """None where some answers are neither right nor wrong."""
    if bool(right.isinf().any()):
        return None
    labelled = ~right.isnan()
    return _mean(right[labelled], weights[labelled]) if bool(weights[labelled].any()) else None


def _mean(values: Tensor, weights: Tensor) -> float:
    counted = weights > 0  # what is not counted may be infinite
    return float(values[counted] @ weights[counted] / weights[counted].sum())


def _accuracies(before: Performance | None, after: Performance | None) -> Pair | None:
    if before is None or after is None or before.accuracy is None or after.accuracy is None:
        return None
    return before.accuracy, after.accuracy


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0


def _held_out_ids(task: Task, seed: int) -> Tensor:
    """The same ones for all requests."""
    most = max(LEAST_HELD_OUT, min(HELD_OUT, 4 * task.batch_size_within_memory(HELD_OUT)))
    order = torch.randperm(len(task.test_set), generator=torch.Generator().manual_seed(seed))
    return order[:most]
