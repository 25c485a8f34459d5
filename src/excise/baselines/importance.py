"""How much the losses of some samples depend on each weight: diagonals of Fisher's matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from excise.curvature.operators import hessian_roots
from excise.errors import InputError
from excise.task.objective import gradient
from excise.task.parameters import trained_parameters
from excise.task.task import Task


def squared_gradients(task: Task, ids: Tensor) -> dict[str, Tensor]:
    """Mean of (∂ℓ/∂w)² over the samples with the labels they have: the diagonal of the empirical Fisher matrix.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(torch.nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> _ = torch.nn.init.constant_(task.model.weight, 3.0)
    >>> squared_gradients(task, torch.tensor([0, 1]))["weight"].item()  # gradients 2 and 1
    2.5
    """
    total = {name: torch.zeros_like(weight) for name, weight in trained_parameters(task.model).items()}
    for sample in ids.tolist():  # one at a time, which every model can do
        for name, one in gradient(task, task.model, [sample]).items():
            total[name] += one**2
    return {name: squares / len(ids) for name, squares in total.items()}


def expected_squared_gradients(task: Task, ids: Tensor) -> dict[str, Tensor]:
    """The same with labels as the model expects them: the diagonal of Fisher's matrix, and of the Gauss-Newton one.

    It is the mean of Σ (Jᵀu)², with J the outputs' Jacobian and uuᵀ summing up to ∇²ℓ.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    >>> task = Task(torch.nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> round(expected_squared_gradients(task, torch.tensor([0, 1]))["weight"].item(), 4)  # mean of 1² and 3²
    5.0
    """
    weights = trained_parameters(task.model)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for sample in ids.tolist():
        with torch.enable_grad():
            outputs, targets = task.outputs(task.model, task.batch([sample]))
        if outputs.ndim != 2:
            raise InputError(f"Fisher's matrix needs outputs of shape (n, outputs), not {tuple(outputs.shape)}.")
        for root in hessian_roots(task, outputs.detach(), targets)[0].T:
            gradients = torch.autograd.grad(
                outputs,
                list(weights.values()),
                root[None],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for squares, one in zip(total.values(), gradients, strict=True):
                squares += one**2
    return {name: squares / len(ids) for name, squares in total.items()}
