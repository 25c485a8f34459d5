"""Is the model near a minimum of its objective? Where it is not, a Newton step says little about retraining."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from excise import objective
from excise.errors import InputError, warn
from excise.slices import trainable
from excise.task import Task, evaluating

CHECKED = 256  # samples that the model is checked on


class NotConvergedWarning(UserWarning):
    """The model is not near a minimum of its objective, so a Newton step says little about retraining."""


def check_convergence(task: Task, model: nn.Module) -> None:
    """Refuse a model whose loss is not finite, and warn of one that is untrained or far from a minimum."""
    ids = torch.arange(len(task.train_set))[:CHECKED]
    with evaluating(model):
        loss = float(objective.losses_on(task, model, ids).mean())
        if not math.isfinite(loss):
            raise InputError(f"the model's loss on its training set is {loss}; check model, loss and data.")
        steepness = objective.norm(objective.slope(task, model, ids))
        chance = _loss_by_chance(task, model, ids)
    if chance is not None and loss > 0.9 * chance:
        warn(
            f"the model's loss on its training set is {loss:.3g}, and guessing has {chance:.3g}: was it trained? "
            "Forgetting will mean little.",
            NotConvergedWarning,
        )
    if steepness * objective.norm(trainable(model)) > 0.5 * max(loss, 1e-3) and steepness > 0.1:
        warn(
            f"the gradient of the objective is {steepness:.3g}, so the model is not near a minimum (was it trained to "
            f"the end, with weight_decay={task.weight_decay}?); forgetting will be less exact.",
            NotConvergedWarning,
        )


def _loss_by_chance(task: Task, model: nn.Module, ids: Tensor) -> float | None:
    """Cross-entropy of guessing among the classes evenly; None for other losses."""
    if not isinstance(task.loss, nn.CrossEntropyLoss):
        return None
    with torch.no_grad():
        outputs, _ = task.outputs(model, task.batch(ids[:1]))
    return math.log(outputs.shape[1]) if outputs.ndim > 1 and outputs.shape[1] > 1 else None
