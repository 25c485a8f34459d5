"""The drift of this package itself, called like the others."""

from __future__ import annotations

from typing import Any

from torch import nn

from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task
from excise.unlearning.drift import Drift
from excise.unlearning.unlearner import Unlearner


@baseline("excise-drift", reference="this package", grid=[{}, {"push": 1.0}, {"epochs": 3, "active": 0.5}])
def excise_drift(
    task: Task, model: nn.Module, forget: Ids, *, seed: int, forgotten: Ids = (), **options: Any
) -> nn.Module:
    """A gentle pass over the retained samples, at first with a push along the samples' Newton step.

    Of this package, with no paper of its own; see ``excise.unlearning.drift``.

    Args:
        options: Those of ``Drift``, with its defaults: ``epochs``, ``active``, ``decay``, ``push``, ``lr``,
            ``momentum``, ``batch_size``, ``selection``, ``curvature``, ``denial``, ``clip``.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> found = excise_drift(task, task.model, [2], seed=0, epochs=200, lr=0.05)
    >>> round(found.weight.item(), 2)  # mean of the targets 1 and 2
    1.5
    """
    how = Drift(**options)
    start = begin(task, model, forget, seed, forgotten=forgotten)
    unlearner = Unlearner(start.task, how, forgotten=start.forgotten, seed=seed)
    return unlearner.forget(start.forget.tolist()).model
