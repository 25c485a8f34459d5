"""What the samples of a task should be answered with, read without running the model wherever that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from excise.task.ids import Ids
from excise.task.task import Task, evaluating


def targets_of(task: Task, ids: Ids | None = None, *, dataset: Any = None) -> NDArray[Any]:
    """Targets of samples of the training set, or of another; None for all of it.

    Only a task with a ``forward`` of its own has to run its model.

    >>> from torch import nn
    >>> data = TensorDataset(torch.zeros(3, 1), torch.tensor([5, 7, 9]))
    >>> targets_of(Task(nn.Linear(1, 10), nn.CrossEntropyLoss(reduction="none"), data), [2, 0]).tolist()
    [9, 5]
    """
    if dataset is None:
        everything = task.targets.numpy()
        return everything if ids is None else everything[np.asarray(ids)]
    chosen = torch.arange(len(dataset)) if ids is None else torch.as_tensor(ids, dtype=torch.long)
    if task.forward is None and isinstance(dataset, TensorDataset):
        targets = dataset.tensors[1][chosen.to(dataset.tensors[1].device)]
        return np.asarray(task.plain_targets(targets).cpu().numpy())
    with evaluating(task.model), torch.no_grad():
        found = [task.targets_in(batch) for batch in task.batches(chosen, task.batch_size_within_memory(256), dataset)]
    return np.concatenate([targets.cpu().numpy() for targets in found])


def are_classes(targets: NDArray[Any]) -> bool:
    """Whether every sample has one class, as opposed to several labels or a number to predict.

    >>> are_classes(np.array([0, 2, 1])), are_classes(np.array([0.5, 2.0])), are_classes(np.array([[0, 1]]))
    (True, False, False)
    """
    return targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer)
