"""What a request does to the model: loss and accuracy of forgotten, retained and held-out samples, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excise.task.task import Task
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


def compared(
    task: Task, models: tuple[nn.Module, nn.Module], ids: list[int], retained: Retained, after: Tensor, seed: int
) -> Compared:
    """Look at both models; ``after`` are the losses of the guard's samples under the second one."""
    forget = [performance(task, model, ids) for model in models]
    weights = retained.sample.weights_without(retained.gone)
    accurate = forget[0].accuracy is not None and bool(weights.any())
    kept = [performance(task, model, retained.sample.ids, weights=weights) for model in models] if accurate else None
    held_out = None
    if _length(task.test_set):
        some = _held_out_ids(task, seed)
        held_out = [performance(task, model, some, dataset=task.test_set) for model in models]
    return Compared(
        forget_loss=(forget[0].loss, forget[1].loss),
        retain_loss=(retained.before, retained.mean(after)),
        held_out_loss=None if held_out is None else (held_out[0].loss, held_out[1].loss),
        forget_accuracy=_accuracies(forget),
        retain_accuracy=_accuracies(kept),
        held_out_accuracy=_accuracies(held_out),
    )


def performance(
    task: Task, model: nn.Module, ids: Sequence[int] | Tensor, *, weights: Tensor | None = None, dataset: Any = None
) -> Performance:
    """Mean loss and accuracy over samples of the training set, or of another; weights tell how much each counts."""
    losses: list[Tensor] = []
    rights: list[Tensor | None] = []
    with torch.no_grad():
        for batch in task.batches(ids, task.batch_size_within_memory(256), dataset):
            outputs, targets = task.outputs(model, batch)
            losses.append(task.sample_losses(outputs, targets).double().cpu())
            rights.append(right_answers(task, outputs, task.plain_targets(targets)))
    share = torch.ones(len(ids), dtype=torch.double) if weights is None else weights.double()
    return Performance(_mean(torch.cat(losses), share), _accuracy(rights, share))


def _accuracy(rights: list[Tensor | None], weights: Tensor) -> float | None:
    known = [one for one in rights if one is not None]
    if not known or len(known) < len(rights):
        return None
    right = torch.cat(known)
    labelled = ~right.isnan()
    return _mean(right[labelled], weights[labelled]) if bool(weights[labelled].any()) else None


def _mean(values: Tensor, weights: Tensor) -> float:
    counted = weights > 0  # what is not counted may be infinite
    return float(values[counted] @ weights[counted] / weights[counted].sum())


def _accuracies(pair: list[Performance] | None) -> Pair | None:
    if pair is None or pair[0].accuracy is None or pair[1].accuracy is None:
        return None
    return pair[0].accuracy, pair[1].accuracy


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0


def _held_out_ids(task: Task, seed: int) -> Tensor:
    """The same ones for all requests."""
    most = max(LEAST_HELD_OUT, min(HELD_OUT, 4 * task.batch_size_within_memory(HELD_OUT)))
    order = torch.randperm(len(task.test_set), generator=torch.Generator().manual_seed(seed))
    return order[:most]
