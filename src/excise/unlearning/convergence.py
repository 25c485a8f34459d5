"""Is the model near a minimum of its objective? Where it is not, a Newton step says little about retraining."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from excise.errors import InputError, NothingForgotten, warn
from excise.task import objective, sharded
from excise.task.losses import is_classification
from excise.task.parameters import Tensors, norm, trainable
from excise.task.sharded import is_sharded
from excise.task.task import Task, evaluating

CHECKED = 256  # samples that the model is checked on


class NotConvergedWarning(UserWarning):
    """The model is not near a minimum of its objective, so a Newton step says little about retraining."""


def check_convergence(task: Task, model: nn.Module, ids: Tensor) -> None:
    """Refuse a model whose loss on samples is not finite, and warn of one that is untrained or far from a minimum."""
    some = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))[:CHECKED]  # they may be sorted by class
    ids = ids[some.sort().values]
    with evaluating(model):
        losses = objective.losses_on(task, model, ids)
        loss = float(losses.mean())
        if not bool(losses.isfinite().any()):
            raise InputError(f"the model's loss on its training set is {loss}; check model, loss and data.")
        require_finite(losses, ids.tolist())
        if is_sharded(model):
            gradient_norm, length = sharded.gradient_norm(task, model, ids), sharded.weights_norm(model)
        else:
            gradient_norm, length = norm(objective.objective_gradient(task, model, ids)), norm(trainable(model))
        if not math.isfinite(gradient_norm):
            raise InputError(
                f"the gradient of the objective is {gradient_norm}: with weight_decay={task.weight_decay} it is too "
                "large for the model's precision, or the loss has no finite slope; pass that of the training."
            )
        chance = _loss_by_chance(task, model, ids)
    if chance is not None and loss > 0.9 * chance:
        warn(
            f"the model's loss on its training set is {loss:.3g}, and guessing has {chance:.3g}: was it trained? "
            "Forgetting will mean little.",
            NotConvergedWarning,
        )
    if gradient_norm * length > 0.5 * max(loss, 1e-3) and gradient_norm > 0.1:
        warn(
            f"the gradient of the objective is {gradient_norm:.3g}, so the model is not near a minimum (was it trained "
            f"to the end, with weight_decay={task.weight_decay}?); forgetting will be less exact.",
            NotConvergedWarning,
        )


def require_finite(losses: Tensor, ids: Sequence[int], name: str = "train_set") -> None:
    """Refuse samples whose loss is no number, naming the first."""
    wrong = (~losses.isfinite()).nonzero().flatten().tolist()
    if wrong:
        raise InputError(
            f"sample {ids[wrong[0]]} of {name} has the loss {float(losses[wrong[0]])} ({len(wrong)} such among "
            f"{len(ids)}), so nothing can be computed from it; check that its input and target are finite, and that "
            "the model's weights are."
        )


def require_change(before: Tensors, after: Tensors, method: str, slices: tuple[str, ...]) -> int:
    """How many weights a method has changed; none, or weights that are no numbers, are an error."""
    require_finite_weights(
        [name for name, weight in after.items() if not bool(weight.isfinite().all())], method, slices
    )
    changed = sum(int((before[name] != weight).sum()) for name, weight in after.items())
    if changed == 0:
        raise nothing_changed(method, slices)
    return changed


def require_finite_weights(wrong: Sequence[str], method: str, slices: tuple[str, ...]) -> None:
    """Refuse weights that are no numbers, of which these are the names."""
    if wrong:
        raise NothingForgotten(
            f"{method} gave weights that are not finite ({wrong[0]}), so its result is thrown away and nothing is "
            "forgotten; take a smaller step or learning rate, pass a guard, or see whether the data are finite.",
            slices,
        )


def nothing_changed(method: str, slices: tuple[str, ...]) -> NothingForgotten:
    """The error that a method left all weights as they were."""
    return NothingForgotten(
        f"{method} changed none of the model's weights, so nothing is forgotten: the samples' gradients ask for "
        "no change, or all steps were too long. Take another method (--method), such as Drift().",
        slices,
    )


def _loss_by_chance(task: Task, model: nn.Module, ids: Tensor) -> float | None:
    """Cross-entropy of guessing among the classes evenly, in one column or several; None for other losses."""
    loss = task.loss_module
    if type(loss) is nn.BCEWithLogitsLoss and loss.weight is None and loss.pos_weight is None:
        return math.log(2)
    if not is_classification(task.loss_module):
        return None
    with torch.no_grad():
        outputs, _ = task.outputs(model, task.batch(ids[:1]))
    return math.log(outputs.shape[1]) if outputs.ndim > 1 and outputs.shape[1] > 1 else None
