"""Full Newton: the influence of the samples on all weights at once, with no choice of slices."""

from __future__ import annotations

from typing import Literal

from torch import nn

from excise._support.checks import choice
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.curvature.solvers import Automatic, Solver, solver_named
from excise.curvature.strategies import GGN, SAMPLES, Hessian
from excise.task.ids import Ids
from excise.task.task import Task
from excise.unlearning.selection import AllSlices
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner


@baseline(
    "full-newton",
    reference="Koh and Liang 2017",
    grid=[
        {"size": 1.0},
        {"size": 1.5},
        {"size": 1.0, "iterations": 20},
        {"curvature": "hessian"},
    ],
)
def full_newton(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    curvature: Literal["ggn", "hessian"] = "ggn",
    size: float = 1.0,
    iterations: int = 8,
    samples: int | None = None,
    solver: Solver | str | None = None,
) -> nn.Module:
    """One step w + (H + λI)⁻¹ Σ (∇ℓ + λw) / n of all weights, with n and H of the retained samples and no guard.

    After Koh and Liang (2017), "Understanding Black-box Predictions via Influence Functions", and as an update of the
    model Guo, Goldstein, Hannun and van der Maaten (2020), "Certified Data Removal from Machine Learning Models",
    without its noise.

    Args:
        task: Data and objective; λ is its weight decay.
        seed: Decides which retained samples H is taken from.
        curvature: H: ``"hessian"``, as in the papers, or ``"ggn"``, which for networks is never indefinite.
        size: Multiple of the step; papers: 1.
        iterations: Of conjugate gradients.
        samples: How many retained samples to take H from; None for 1,000.
        solver: ``"cholesky"`` is exact, for small models; None for that or conjugate gradients, by the model's size.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> full_newton(task, task.model, [2], seed=0).weight.item()  # the mean of the targets 1 and 2
    1.5
    """
    kind = {"ggn": GGN, "hessian": Hessian}[choice(curvature, ("ggn", "hessian"), "curvature")]
    start = begin(task, model, forget, seed, forgotten=forgotten)
    how = Automatic(iterations) if solver is None else solver_named(solver)
    step = Step(AllSlices(), kind(samples or SAMPLES, how), size)
    unlearner = Unlearner(start.task, step, guard=None, forgotten=start.forgotten, seed=seed)
    return unlearner.forget(start.forget.tolist()).model
