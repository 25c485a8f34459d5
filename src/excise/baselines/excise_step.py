"""The step of this package itself, called like the others."""

from __future__ import annotations

from torch import nn

from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task
from excise.unlearning.selection import PerLayer
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner


@baseline("excise-step", reference="this package", grid=[{}, {"size": 1.5}, {"share": 0.5}])
def excise_step(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    share: float = 0.3,
    size: float = 1.0,
    n_jobs: int | None = None,
) -> nn.Module:
    """L-FOCI in every layer, then one Newton step on the chosen slices.

    It goes on from Mehta, Pal, Singh and Ravi (2022), "Deep Unlearning via Randomized Conditionally Independent
    Hessians"; see ``excise.Unlearner`` for what it changes.

    Args:
        share: The most slices of a layer to update, as a share.
        size: Multiple of the Newton step.
        n_jobs: Threads of L-FOCI; None for all cores.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(excise_step(task, task.model, [2], seed=0, share=1.0).weight.item(), 3)  # mean of the targets 1 and 2
    1.5
    """
    start = begin(task, model, forget, seed, forgotten=forgotten)
    step = Step(PerLayer(share), size=size)
    unlearner = Unlearner(start.task, step, forgotten=start.forgotten, seed=seed, n_jobs=n_jobs)
    return unlearner.forget(start.forget.tolist()).model
