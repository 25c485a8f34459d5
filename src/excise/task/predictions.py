"""What a model says about samples: outputs, targets and losses as arrays, the raw material of every audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from excise.task import Ids, Task, evaluating

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """A model's answers to some samples, one row each."""

    outputs: Floats
    targets: NDArray[Any]
    losses: Floats

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class, as opposed to several labels or a number to predict."""
        return self.outputs.ndim == 2 and self.targets.ndim == 1 and np.issubdtype(self.targets.dtype, np.integer)


def answers(task: Task, model: nn.Module, ids: Ids | None = None, *, dataset: Any = None) -> Answers:
    """Answers to samples of the training set, or of another; None for all of it. The model is left as it was.

    Outputs are in double precision, and losses are computed from them so: equal ones would tie in an attack.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]))
    >>> model = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> answers(Task(model, nn.CrossEntropyLoss(reduction="none"), data), model).losses.round(4).tolist()
    [0.6931, 0.6931]
    """
    data = task.train_set if dataset is None else dataset
    chosen = torch.arange(len(data)) if ids is None else torch.as_tensor(ids, dtype=torch.long)
    outputs, targets, losses = [], [], []
    with evaluating(model), torch.no_grad():
        for batch in task.batches(chosen, task.modest_batch(256), dataset):
            output, target = task.outputs(model, batch)
            output = output.double() if output.is_floating_point() else output
            losses.append(task.sample_losses(output, _double(target)).double().cpu().numpy())
            outputs.append(output.cpu().numpy())
            targets.append(target.cpu().numpy())
    return Answers(np.concatenate(outputs), np.concatenate(targets), np.concatenate(losses))


def _double(target: torch.Tensor) -> torch.Tensor:
    return target.double() if target.is_floating_point() else target
