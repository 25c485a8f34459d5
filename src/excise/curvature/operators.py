"""Curvature of the objective on a block of parameters, as products with vectors.

With f the network's outputs, J their Jacobian in the block and ℓ the loss, the curvature of the mean loss is

- ``ggn``: mean of Jᵀ ∇²ℓ J, the generalised Gauss-Newton matrix, never indefinite for a convex loss;
- ``hessian``: the true second derivatives, which may be indefinite;
- ``fisher``: mean of g gᵀ over the samples' gradients g, the empirical Fisher matrix;
- ``rank-one``: the paper's finite difference of the gradients of two epochs (``rank_one``).

No p × p matrix is formed here; ``solvers`` solve with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from excise._support.checks import choice
from excise.curvature.forward_mode import forward_mode, plain_kernels
from excise.errors import InputError
from excise.slices.slices import Block
from excise.task.parameters import Tensors, trainable
from excise.task.sharing import sum_over
from excise.task.task import Batch, Task

Kind = Literal["ggn", "hessian", "fisher"]


@dataclass(frozen=True)
class Operator:
    """A symmetric matrix that is known by its products."""

    size: int
    product: Callable[[Tensor], Tensor]

    def dense(self, like: Tensor) -> Tensor:
        """The matrix itself: for small blocks, and for tests."""
        return torch.stack([self.product(row) for row in torch.eye(self.size).to(like)])


class Outputs(nn.Module):
    """The model and the task's way of calling it as one module, so that it can be called with other parameters."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = (task,)  # in a tuple: the task's own model is not to become a part of this one

    def forward(self, batch: Batch) -> Tensor:
        """Outputs for the batch."""
        return self._task[0].outputs(self.model, batch)[0]


def outputs_of(task: Task, model: nn.Module, batch: Batch) -> Callable[[Tensors], Tensor]:
    """The outputs for a batch as a function of the trainable parameters."""
    module, places = Outputs(task, model), _places(model)
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())

    def call(parameters: Tensors) -> Tensor:
        given = {f"model.{place}": value for name, value in parameters.items() for place in places[name]}
        with plain_kernels(recurrent=recurrent):
            result: Tensor = functional_call(module, given, (batch,), tie_weights=False)
        return result

    return call


def _places(model: nn.Module) -> dict[str, list[str]]:
    """All places that hold a parameter, by its name: several where it is tied, one where its module is used twice.

    ``functional_call`` would find them itself, but leaves a module that is used twice without its parameters.
    """
    found: dict[int, list[str]] = {}
    for prefix, part in model.named_modules():
        for place, weight in part.named_parameters(prefix, recurse=False, remove_duplicate=False):
            found.setdefault(id(weight), []).append(place)
    return {places[0]: places for places in found.values()}


def curvature(
    task: Task,
    model: nn.Module,
    block: Block,
    ids: Sequence[int] | Tensor,
    *,
    kind: Kind = "ggn",
    batch_size: int = 256,
) -> Operator:
    """Curvature of the mean loss over the samples, on the block."""
    choice(kind, ("ggn", "hessian", "fisher"), "kind")
    parameters = trainable(model)
    multiply = {"ggn": _ggn_product, "hessian": _hessian_product, "fisher": _fisher_product}[kind]

    def product(vector: Tensor) -> Tensor:
        tangent = block.scatter(vector, parameters)

        def of_batch(batch: Batch) -> list[Tensor]:
            with forward_mode():
                return [block.gather(multiply(task, model, batch, parameters, tangent)).to(vector)]

        (found,) = sum_over(task, ids, of_batch, batch_size, f"products of {kind}", into=[torch.zeros_like(vector)])
        return found / len(ids)

    return Operator(block.size(parameters), product)


def _ggn_product(task: Task, model: nn.Module, batch: Batch, parameters: Tensors, tangent: Tensors) -> Tensors:
    network, targets = outputs_of(task, model, batch), task.outputs(model, batch)[1]
    outputs, along, *_ = jvp(network, (parameters,), (tangent,))

    def loss(outputs: Tensor) -> Tensor:
        return task.sample_losses(outputs, targets).sum()

    bent = jvp(grad(loss), (outputs,), (along,))[1]
    result: Tensors = vjp(network, parameters)[1](bent)[0]
    return result


def _hessian_product(task: Task, model: nn.Module, batch: Batch, parameters: Tensors, tangent: Tensors) -> Tensors:
    network, targets = outputs_of(task, model, batch), task.outputs(model, batch)[1]

    def loss(parameters: Tensors) -> Tensor:
        return task.sample_losses(network(parameters), targets).sum()

    result: Tensors = jvp(grad(loss), (parameters,), (tangent,))[1]
    return result


def _fisher_product(task: Task, model: nn.Module, batch: Batch, parameters: Tensors, tangent: Tensors) -> Tensors:
    network, targets = outputs_of(task, model, batch), task.outputs(model, batch)[1]

    def losses(parameters: Tensors) -> Tensor:
        return task.sample_losses(network(parameters), targets)

    along = jvp(losses, (parameters,), (tangent,))[1]
    result: Tensors = vjp(losses, parameters)[1](along)[0]
    return result


def rank_one_root(block: Block, gradients: tuple[Tensors, Tensors], parameters: tuple[Tensors, Tensors]) -> Tensor:
    """The r whose rrᵀ is the paper's finite difference, as its code has it: d dᵀ / ‖Δw‖₁, d that of two gradients."""
    step = (block.gather(parameters[0]) - block.gather(parameters[1])).abs().sum()
    if step == 0:
        raise InputError("the two epochs have the same parameters on this block, so no finite difference can be taken.")
    root: Tensor = (block.gather(gradients[0]) - block.gather(gradients[1])) / step.sqrt()
    return root


def rank_one(block: Block, gradients: tuple[Tensors, Tensors], parameters: tuple[Tensors, Tensors]) -> Operator:
    """The paper's curvature of the training set."""
    root = rank_one_root(block, gradients, parameters)
    return Operator(len(root), lambda vector: root * (root @ vector))


def ggn_rows(
    task: Task, model: nn.Module, block: Block, ids: Sequence[int] | Tensor, *, batch_size: int = 64
) -> Tensor:
    """Rows V with VᵀV = the Gauss-Newton matrix of the mean loss: one per sample and output (fewer if ∇²ℓ is smaller).

    A row is Jᵀ u √(μ/n) for each eigenpair (μ, u) of a sample's ∇²ℓ.
    """
    parameters = trainable(model)
    rows: list[Tensor] = []
    for batch in task.batches(ids, batch_size):
        network = outputs_of(task, model, batch)
        outputs, targets = task.outputs(model, batch)
        cotangents = hessian_roots(task, outputs.detach(), targets)  # (samples, outputs, roots)
        back = vjp(network, parameters)[1]
        for sample in range(len(outputs)):
            for root in cotangents[sample].T:
                if root.any():
                    cotangent = torch.zeros_like(outputs)
                    cotangent[sample] = root
                    rows.append(block.gather(back(cotangent)[0]))
    result: Tensor = torch.stack(rows) / len(ids) ** 0.5
    return result


def hessian_roots(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """S with S Sᵀ = ∇²ℓ for each sample."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return task.sample_losses(output[None], target[None])[0]

    with forward_mode():
        hessians = vmap(torch.func.hessian(loss))(outputs, targets)
    values, vectors = torch.linalg.eigh(hessians)
    values = torch.where(values > values[..., -1:] * 1e-7, values, 0.0)
    result: Tensor = vectors * values.sqrt()[:, None, :]
    return result
