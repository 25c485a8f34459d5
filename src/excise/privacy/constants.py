"""The constants L and M that noise rests on, against the gradients and curvatures that are met.

Of a linear layer the sample's gradient is p aᵀ + λw, and its Hessian A ⊗ aaᵀ with A that of the loss by the outputs. So
along a direction r aᵀ / ‖a‖ of the weights, with ‖r‖ = 1, the Hessian changes by ‖(A(z + s r) - A(z)) r‖ ‖a‖² over a
distance of s / ‖a‖, which is a lower bound on M. Nothing that is met proves the constants, but it can refute them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.privacy.heads import linear_head
from excise.privacy.sightings import Head, Sighting, sight
from excise.task.task import Task, evaluating

DIRECTIONS = 2
STEP = 1e-3  # s, of the outputs
ROUNDING = 1 + 1e-6
NOT_SMOOTH = (nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
"""Losses whose Hessian jumps, so that no M is large enough."""


@dataclass(frozen=True)
class ConstantsMet:
    """The largest of what was met."""

    gradient: float
    """Norm of a sample's gradient, weight decay included: L must be at least this."""
    curvature_change: float
    """Change of a sample's Hessian for a change of the weights: M must be at least this."""


def refuted(task: Task, model: nn.Module, ids: Tensor, lipschitz: float, hessian_lipschitz: float) -> str | None:
    """Why the constants can't be right, in words; None where nothing that is met speaks against them."""
    layer = linear_head(model)
    if isinstance(layer, str):
        return f"the constants L and M can't be checked, because {layer}"
    if type(task.loss_module) in NOT_SMOOTH:
        return f"the Hessian of {type(task.loss_module).__name__} jumps, so that it has no Lipschitz constant M"
    met = constants_met(task, Head(model, layer), ids)
    if met is None:
        return "the constants L and M can't be checked where the linear layer sees several rows of a sample"
    if met.gradient > lipschitz * ROUNDING:
        return f"lipschitz={lipschitz:g} is too small: a sample's gradient has the norm {met.gradient:.4g}"
    if met.curvature_change > hessian_lipschitz * ROUNDING:
        return (
            f"hessian_lipschitz={hessian_lipschitz:g} is too small: a sample's Hessian changes by "
            f"{met.curvature_change:.4g} times the change of the weights"
        )
    return None


def constants_met(task: Task, head: Head, ids: Tensor) -> ConstantsMet | None:
    """By a pass over the samples; None where the layer sees several rows of one."""
    gradient, change = 0.0, 0.0
    generator = torch.Generator().manual_seed(0)
    with evaluating(head.model):
        for batch in task.batches(ids, task.batch_size_within_memory(256)):
            seen = sight(task, head, batch)
            if seen.rows.shape[1] != 1:
                return None
            gradient = max(gradient, float(_gradients(task, seen).max()))
            for _ in range(DIRECTIONS):
                change = max(change, float(_changes(task, seen, generator).max()))
    return ConstantsMet(gradient, change)


def _gradients(task: Task, seen: Sighting) -> Tensor:
    """‖p aᵀ + λw‖ of every sample."""
    slopes, rows, decay = seen.slopes(task)[:, 0], seen.trained_rows[:, 0], task.weight_decay
    parts = [
        one.detach().double() for one in (seen.layer.weight, seen.layer.bias) if one is not None and one.requires_grad
    ]
    weights = torch.cat([one.reshape(seen.layer.out_features, -1) for one in parts], 1)
    inner = ((slopes @ weights) * rows).sum(1)
    squares = (slopes**2).sum(1) * (rows**2).sum(1) + 2 * decay * inner + decay**2 * (weights**2).sum()
    return squares.clamp_min(0).sqrt()


def _changes(task: Task, seen: Sighting, generator: torch.Generator) -> Tensor:
    """‖(A(z + s r) - A(z)) r‖ ‖a‖³ / s of every sample, less what rounding can make of it."""
    outputs = seen.exact
    direction = torch.randn(outputs.reshape(seen.samples, -1).shape, generator=generator, dtype=torch.float64)
    direction = (direction / direction.norm(dim=1, keepdim=True)).reshape(outputs.shape).to(outputs)
    here, there = (_curved(task, seen, outputs + step * direction, direction) for step in (0.0, STEP))
    change = (there - here).flatten(1).norm(dim=1) / STEP
    rounding = 1e-12 * (here.flatten(1).norm(dim=1) + there.flatten(1).norm(dim=1)) / STEP
    found: Tensor = (change - rounding).clamp_min(0) * seen.trained_rows[:, 0].norm(dim=1) ** 3
    return found


def _curved(task: Task, seen: Sighting, outputs: Tensor, direction: Tensor) -> Tensor:
    """A r of every sample."""
    with torch.enable_grad():
        at = outputs.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(seen.losses(task, at).sum(), at, create_graph=True)
        if not slopes.requires_grad:
            return torch.zeros_like(outputs)
        (found,) = torch.autograd.grad((slopes * direction).sum(), at)
    return found.detach()
