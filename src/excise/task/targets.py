"""What the samples of a task should be answered with, read without running the model wherever that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.errors import InputError
from excise.task import Batch, Ids, Task, evaluating


def targets_of(
    task: Task, ids: Ids | None = None, *, dataset: Any = None, model: nn.Module | None = None
) -> NDArray[Any]:
    """Targets of samples of the training set, or of another; None for all of it.

    Only a task with a ``forward`` of its own has to run a model, the task's unless another is given.

    >>> data = TensorDataset(torch.zeros(3, 1), torch.tensor([5, 7, 9]))
    >>> targets_of(Task(nn.Linear(1, 10), nn.CrossEntropyLoss(reduction="none"), data), [2, 0]).tolist()
    [9, 5]
    """
    data = task.train_set if dataset is None else dataset
    chosen = torch.arange(len(data)) if ids is None else torch.as_tensor(ids, dtype=torch.long)
    if task.forward is None and isinstance(data, TensorDataset):
        return np.asarray(data.tensors[1][chosen.to(data.tensors[1].device)].cpu().numpy())
    model = task.model if model is None else model
    with evaluating(model), torch.no_grad():
        found = [_targets(task, model, batch) for batch in task.batches(chosen, task.modest_batch(256), dataset)]
    return np.concatenate([targets.cpu().numpy() for targets in found])


def are_classes(targets: NDArray[Any]) -> bool:
    """Whether every sample has one class, as opposed to several labels or a number to predict.

    >>> are_classes(np.array([0, 2, 1])), are_classes(np.array([0.5, 2.0])), are_classes(np.array([[0, 1]]))
    (True, False, False)
    """
    return targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer)


def _targets(task: Task, model: nn.Module, batch: Batch) -> Tensor:
    if task.forward is not None:
        return task.outputs(model, batch)[1]
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise InputError("a batch that is a mapping needs a 'labels' entry; or pass forward= to Task.")
        batch = (None, batch["labels"])
    targets: Tensor = batch[1]
    return targets
