"""A linear layer as all that is trained, and a convex loss: what of models and losses speaks against it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from excise.errors import NeverSupportedError
from excise.task.losses import nonnegative_weights
from excise.task.task import Task

if TYPE_CHECKING:
    from excise.privacy.sightings import Sighting

CONVEX_LOSSES = (
    nn.CrossEntropyLoss,
    nn.NLLLoss,  # of log-probabilities: cross-entropy of what the log-softmax is taken of
    nn.BCEWithLogitsLoss,
    nn.MSELoss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.L1Loss,
)
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
MOVED = 0.5  # by how much of their size the weights are changed to see what depends on them


def trained_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that have trained parameters of their own."""
    return [one for one in model.modules() if any(weight.requires_grad for weight in one.parameters(recurse=False))]


def linear_head(model: nn.Module) -> nn.Linear | str:
    """The linear layer that is all that is trained, or what is not so."""
    trained = trained_modules(model)
    if len(trained) != 1 or type(trained[0]) is not nn.Linear:
        return "more is trained than one linear layer"
    layer = trained[0]
    weights = list(layer.parameters())
    if any(type(one) is not nn.Parameter or not one.is_floating_point() for one in weights):
        return "the linear layer's weights are no plain tensors of real numbers"
    if layer.weight.shape != (layer.out_features, layer.in_features):
        return "the linear layer's weights have another shape than it says"
    return layer


def head_of(model: nn.Module) -> nn.Linear:
    """The linear layer that is all that is trained, where that is known; an error where it is not so."""
    layer = linear_head(model)
    if isinstance(layer, str):
        raise NeverSupportedError(f"the model must be one of which a single linear layer is trained ({layer}).")
    return layer


def doubt_of_model(model: nn.Module) -> str | None:
    """What may alter what the model computes; None for nothing."""
    replaced = nn.Linear.forward.__module__ != "torch.nn.modules.linear"
    if replaced or any(getattr(hooks_of_all, name) for name in GLOBAL_HOOKS):
        return "hooks or a replaced forward() may alter what the model computes"
    if any(_is_altered(one) for one in model.modules()):
        return "hooks or a replaced forward() may alter what the model computes"
    return None


def doubt_of_loss(loss: Any) -> str | None:
    """What of the loss speaks against convexity in the outputs; None for nothing."""
    if type(loss) not in CONVEX_LOSSES:
        return f"{type(loss).__name__} is not known to be convex"
    if _is_altered(loss) or type(loss).forward.__module__ != "torch.nn.modules.loss":
        return "the loss has negative weights or hooks, or its forward() was replaced"
    weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    finite = all(bool(one.isfinite().all()) for one in weights if isinstance(one, Tensor))
    if not finite or not nonnegative_weights(loss):
        return "the loss has negative weights or hooks, or weights that are not finite"
    if not 0 <= getattr(loss, "label_smoothing", 0.0) <= 1 or not 0 <= getattr(loss, "beta", 0.0) < float("inf"):
        return "the loss has an option out of its range"
    return None


def _is_altered(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def with_other_weights(model: nn.Module) -> nn.Module:
    """A copy with other trained weights: what it computes differently depends on them, whatever the graph says."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in moved.parameters():
            if weight.requires_grad:
                noise = torch.randn(weight.shape, generator=generator).to(weight)
                weight.add_(MOVED * (weight.abs().mean() + 1) * noise)
    return moved


def doubt_of_values(task: Task, fresh: Task, one: Sighting, other: Sighting) -> str | None:
    """What of a batch's losses speaks against convexity, seen with two sets of weights; None for nothing.

    ``fresh`` is the task as it would be made now, from the loss as it is now.
    """
    if not (one.inputs.isfinite().all() and one.outputs.isfinite().all() and _are_fit(task, one.targets)):
        return "inputs, outputs or targets are not finite, or targets are no probabilities, or weights negative"
    first, second, middle = one.exact, other.exact, (one.exact + other.exact) / 2
    losses = [one.losses(task, outputs) for outputs in (first, second, middle)]
    if not torch.allclose(losses[0], one.losses(fresh, first), rtol=1e-9, atol=1e-12):
        return "the loss was changed after the task was made"
    chord = (losses[0] + losses[1]) / 2
    if not bool((losses[2] <= chord + 1e-9 * (1 + chord.abs())).all()):
        return "the loss of a sample is not convex, nor finite"
    return None


def _are_fit(task: Task, told: Tensor) -> bool:
    """Whether targets are such that the loss is convex: probabilities must be some, other numbers finite.

    And so must weights be that they carry, and not negative.
    """
    if task.weighting is not None:
        weights = task.weighting.weights(told)
        if not bool((weights.isfinite() & (weights >= 0)).all()):
            return False
    targets = task.plain_targets(told)
    if targets.is_complex():
        return False
    if not targets.is_floating_point():
        return True
    if isinstance(task.loss_module, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss):
        return bool(((targets >= 0) & (targets <= 1)).all())
    return bool(targets.isfinite().all())
