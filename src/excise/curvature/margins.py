"""Margins of samples and how they change with the weights.

The margin φ = z_c - log Σ_{j≠c} exp z_j of a sample of class c tells all that cross-entropy knows of it: the loss is
log(1 + exp -φ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from excise.curvature.rows import Rows
from excise.curvature.sample_rows import sample_rows
from excise.errors import InputError
from excise.slices.slices import Slices
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task


@dataclass(frozen=True)
class Margins:
    """Of some samples, in double precision."""

    values: Tensor
    weights: Tensor
    """How much each sample's loss counts, by its class or by itself."""
    classes: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def at(self, which: Tensor) -> Margins:
        """Those of some of the samples."""
        return Margins(self.values[which], self.weights[which], self.classes[which])

    def joined(self, other: Margins) -> Margins:
        """Those of both."""
        pairs = ((self.values, other.values), (self.weights, other.weights), (self.classes, other.classes))
        return Margins(*(torch.cat(pair) for pair in pairs))

    @property
    def losses(self) -> Tensor:
        """Cross-entropy."""
        return self.weights * self.plain_losses

    @property
    def plain_losses(self) -> Tensor:
        """The same as if all samples weighed the same."""
        return nn.functional.softplus(-self.values)


def has_margins(task: Task, model: nn.Module) -> bool:
    """Whether the loss is cross-entropy of one class a sample, so that margins tell all of it."""
    with torch.no_grad():
        outputs, targets = task.outputs(model, task.batch([0]))
        classes = task.plain_targets(targets)
        if outputs.ndim != 2 or len(outputs) != 1 or outputs.shape[1] < 2 or classes.is_floating_point():
            return False
        smoothing = getattr(task.loss_module, "label_smoothing", 0.0)
        return not smoothing and task.cross_entropy_weights(outputs, targets) is not None


def margins(task: Task, model: nn.Module, ids: Sequence[int] | Tensor, dataset: Any = None) -> Margins:
    """Margins of samples of the training set, or of another."""
    none = torch.zeros(0, dtype=torch.double)
    if not len(ids):
        return Margins(none, none, none.long())

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        outputs, targets = task.outputs(model, batch)
        _require_classes(task.plain_targets(targets), "train_set" if dataset is None else "test_set")
        found = _margins(task, outputs, targets)
        return found.values, found.weights, found.classes

    size = task.batch_size_within_memory(256)
    with torch.no_grad():
        return Margins(*rows_over(task, ids, of_batch, size, "margins", dataset=dataset))


def _require_classes(targets: Tensor, name: str) -> None:
    if targets.ndim != 1 or targets.is_floating_point():
        raise InputError(
            f"{name} has targets of shape {tuple(targets.shape)} and type {targets.dtype}, and others have one class "
            "each, a whole number: give both sets targets of one kind, such as by targets.argmax(1)."
        )


def margin_rows(task: Task, model: nn.Module, slices: Slices, ids: Tensor) -> tuple[Margins, list[Rows]]:
    """Margins of samples of the training set, and ∇φ of each, layer by layer."""
    with torch.no_grad():
        size = task.batch_size_within_memory(256)
        outputs, targets = rows_over(task, ids, lambda batch: task.outputs(model, batch), size, "outputs")
    with torch.enable_grad():
        variable = outputs.detach().requires_grad_()
        total = margin_of(variable, task.plain_targets(targets)).sum()
        slopes = torch.autograd.grad(total, variable)[0]
    return _margins(task, outputs, targets), sample_rows(task, model, slices, ids, slopes)


def _margins(task: Task, outputs: Tensor, targets: Tensor) -> Margins:
    classes = task.plain_targets(targets)
    weights = _weights(task, outputs, targets)
    return Margins(margin_of(outputs.double(), classes).cpu(), weights.cpu(), classes.cpu())


def margin_of(outputs: Tensor, classes: Tensor) -> Tensor:
    """The margin of each row of outputs.

    >>> margin_of(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [2.0, 0.0]
    >>> margin_of(torch.tensor([[2.0, 0.0]]), torch.tensor([255])).isfinite().item()  # no class
    True
    """
    is_class = (classes >= 0) & (classes < outputs.shape[1])
    at = (classes * is_class)[:, None]  # a label that is ignored has weight 0, and any margin will do
    others = outputs.scatter(1, at, -torch.inf)
    return outputs.gather(1, at)[:, 0] - others.logsumexp(1)


def _weights(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    weights = task.cross_entropy_weights(outputs, targets)
    return torch.ones(len(outputs), dtype=torch.double) if weights is None else weights.double()
