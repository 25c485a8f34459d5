"""The objective F(w) = mean loss + λ/2 ‖w‖² over some samples: its losses, value and gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from excise.errors import InputError
from excise.task.parameters import trainable, trained_parameters
from excise.task.precision import precision_of_sums
from excise.task.sharing import rows_over, sum_over
from excise.task.task import Batch, Task

Positions = Sequence[int] | Tensor


def losses_on(task: Task, model: nn.Module, ids: Positions, *, batch_size: int = 256) -> Tensor:
    """The samples' losses, in their order."""
    if len(ids) == 0:
        raise InputError("there is no sample left whose loss could be computed; leave some that are not forgotten.")
    with torch.no_grad():
        (losses,) = rows_over(task, ids, lambda batch: [task.losses(model, batch)], batch_size, "losses")
    return losses


def gradient(task: Task, model: nn.Module, ids: Positions, *, batch_size: int | None = None) -> dict[str, Tensor]:
    """Σ ∇ℓ over the samples, by parameter; weight decay is not part of it."""
    weights = trained_parameters(model)

    def of_batch(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            loss = task.losses(model, batch).sum()
        if not loss.requires_grad:
            raise InputError(
                "loss does not depend on the model's trainable parameters: nothing can be learned or forgotten by it; "
                "see whether outputs are detached in the model, the loss or forward=."
            )
        return torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)

    size = batch_size or task.batch_size_within_memory(256)
    zeros = [torch.zeros_like(weight, dtype=precision_of_sums(weight.dtype)) for weight in weights.values()]
    return dict(zip(weights, sum_over(task, ids, of_batch, size, "gradients", into=zeros), strict=True))


def value(task: Task, model: nn.Module, ids: Positions) -> float:
    """F over the samples."""
    norm = sum(float((weight.double() ** 2).sum()) for weight in trainable(model).values())
    return float(losses_on(task, model, ids).double().sum()) / _mass(task, ids) + task.weight_decay / 2 * norm


def objective_gradient(task: Task, model: nn.Module, ids: Positions) -> dict[str, Tensor]:
    """∇F over the samples, by parameter."""
    data, mass = gradient(task, model, ids), _mass(task, ids)
    return {name: data[name] / mass + task.weight_decay * weight for name, weight in trainable(model).items()}


def _mass(task: Task, ids: Positions) -> float:
    mass = task.mass(ids)
    if not mass > 0:
        raise InputError("none of the samples that are left has a label, or a weight; leave some that have.")
    return mass


def removal_gradient(task: Task, model: nn.Module, ids: Positions, left: int) -> dict[str, Tensor]:
    """-∇F over the samples that are left when these are gone, for a model at the minimum of F over all of them.

    There Σ ∇ℓ = -nλw over all n samples, so that what is left has the gradient -Σ (∇ℓ + λw) / left, a sum over the
    samples that go: each takes its share of the weight decay with it. Parameters that these samples' losses don't
    depend on at all, such as a pooler that is not used, are not at a minimum and stay as they are.
    """
    data, share = gradient(task, model, ids), task.mass(ids) * task.weight_decay
    held_up = {name: data[name] + share * weight for name, weight in trainable(model).items() if data[name].any()}
    return {name: held_up.get(name, one) / left for name, one in data.items()}
