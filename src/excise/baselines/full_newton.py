"""Full Newton: the influence of the samples on all weights at once, with no choice of slices."""

from __future__ import annotations

from typing import Literal

from torch import nn

from excise.baselines.signature import begin
from excise.curvature import Solver
from excise.inputs import choice
from excise.task import Ids, Task
from excise.unlearn import Unlearner


def full_newton(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    curvature: Literal["ggn", "hessian"] = "ggn",
    step_size: float = 1.0,
    iterations: int = 8,
    samples: int | None = None,
    solver: Solver = "auto",
) -> nn.Module:
    """One step w + (H + λI)⁻¹ Σ (∇ℓ + λw) / n of all weights, with n and H of the retained samples and no guard.

    After Koh and Liang (2017), "Understanding Black-box Predictions via Influence Functions", and as an update of the
    model Guo, Goldstein, Hannun and van der Maaten (2020), "Certified Data Removal from Machine Learning Models",
    without its noise.

    Args:
        task: Data and objective; λ is its weight decay.
        model: The trained model.
        forget: Positions in ``train_set``.
        seed: Decides which retained samples H is taken from.
        curvature: H: ``"hessian"``, as in the papers, or ``"ggn"``, which for networks is never indefinite.
        step_size: Multiple of the step; papers: 1.
        iterations: Of conjugate gradients.
        samples: How many retained samples to take H from; None for 1,000.
        solver: As in ``Unlearner``: ``"cholesky"`` is exact, for small models.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> full_newton(task, task.model, [2], seed=0).weight.item()  # the mean of the targets 1 and 2
    1.5
    """
    choice(curvature, ("ggn", "hessian"), "curvature")
    start = begin(task, model, forget, seed)
    unlearner = Unlearner(
        start.task,
        selection="all",
        curvature=curvature,
        curvature_samples=samples,
        solver=solver,
        iterations=iterations,
        step_size=step_size,
        guard=None,
        seed=seed,
    )
    return unlearner.forget(start.forget.tolist()).model
