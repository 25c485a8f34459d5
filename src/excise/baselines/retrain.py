"""Retraining from scratch: not an approximation but the truth that the others are held against."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task
from excise.training.retraining import retrain as retrain_from_scratch


@baseline("retrain", reference="the truth")
def retrain(
    task: Task, model: nn.Module, forget: Ids, *, seed: int, forgotten: Ids = (), cache: Path | None = None
) -> nn.Module:
    """A model that was trained without the samples, from fresh weights.

    Args:
        task: Data and objective; ``task.retrain`` says how to train.
        model: Of this only the architecture counts.
        seed: Decides the fresh weights and the order of the samples.
        cache: A folder in which to keep the model, so that the same request is answered at once.

    >>> def mean_target(ids: torch.Tensor, seed: int) -> nn.Module:
    ...     model = nn.Linear(1, 1, bias=False)
    ...     _ = nn.init.constant_(model.weight, data.tensors[1][ids].mean().item())
    ...     return model
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(mean_target([0, 1, 2], 0), nn.MSELoss(reduction="none"), data, retrain=mean_target)
    >>> retrain(task, task.model, [2], seed=0).weight.item()
    1.5
    """
    start = begin(task, model, forget, seed, forgotten=forgotten)
    gone = torch.cat([start.forgotten, start.forget])
    return retrain_from_scratch(start.task, gone, seed=seed, cache=cache).model
