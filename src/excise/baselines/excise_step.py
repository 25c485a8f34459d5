"""The step of this package itself, called like the others."""

from __future__ import annotations

from typing import Any

from torch import nn

from excise.baselines.signature import begin
from excise.task import Ids, Task
from excise.unlearn import Unlearner


def excise_step(task: Task, model: nn.Module, forget: Ids, *, seed: int, **options: Any) -> nn.Module:
    """L-FOCI in every layer, then one Newton step on the chosen slices.

    It goes on from Mehta, Pal, Singh and Ravi (2022), "Deep Unlearning via Randomized Conditionally Independent
    Hessians"; see ``excise.Unlearner`` for what it changes.

    Args:
        task: Data and objective.
        model: The trained model.
        forget: Positions in ``train_set``.
        seed: Decides everything random.
        options: Those of ``Unlearner``, with its defaults; such as ``share``, ``step_size``, ``curvature``.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(excise_step(task, task.model, [2], seed=0, share=1.0).weight.item(), 3)  # mean of the targets 1 and 2
    1.5
    """
    start = begin(task, model, forget, seed)
    return Unlearner(start.task, seed=seed, **options).forget(start.forget.tolist()).model
