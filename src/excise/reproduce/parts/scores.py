"""What is measured of a model after removals: what it gets right, its gradients, and how near retraining it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.reproduce.parts.removals import all_but
from excise.task import objective
from excise.task.ids import Ids, positions
from excise.task.parameters import norm, trainable
from excise.task.task import Task, evaluating

RESIDUAL, VALIDATION = "residual accuracy", "validation accuracy"


def is_right(model: nn.Module, data: TensorDataset, ids: Ids | None = None, *, batch_size: int) -> Tensor:
    """For each sample, whether the model gives its class the largest output; of all samples, or of some."""
    images, labels = data.tensors
    chosen = positions(ids, len(data))
    with torch.no_grad(), evaluating(model):
        return torch.cat([model(images[batch]).argmax(1) == labels[batch] for batch in chosen.split(batch_size)])


def accuracies(task: Task, model: nn.Module, gone: Sequence[int]) -> dict[str, float]:
    """On what remains of the training set, and on the test set."""
    right = is_right(model, task.train_set, batch_size=4096)
    right_left = int(right.sum()) - int(right[list(gone)].sum())
    return {
        RESIDUAL: right_left / (len(right) - len(gone)),
        VALIDATION: float(is_right(model, task.test_set, batch_size=4096).double().mean()),
    }


def gradient_norm(task: Task, model: nn.Module, sample: int) -> float:
    """Of the sample's loss, over all weights."""
    return norm(objective.gradient(task, model, [sample]))


def residual_gradient_norm(task: Task, model: nn.Module, gone: Sequence[int]) -> float:
    """Of the objective without some samples, weight decay included."""
    return norm(objective.objective_gradient(task, model, torch.tensor(all_but(gone, len(task.train_set)))))


def flat(model: nn.Module, dtype: torch.dtype = torch.float64) -> Tensor:
    """All trained weights in one vector."""
    return torch.cat([weight.detach().to(dtype).flatten() for weight in trainable(model).values()])


def distance_left(before: nn.Module, after: nn.Module, retrained: nn.Module) -> float:
    """Distance to the retrained weights, as a share of what it was: 0 is retrained, 1 is nothing done."""
    truth = flat(retrained)
    return float((flat(after) - truth).norm() / (flat(before) - truth).norm())
