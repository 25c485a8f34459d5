"""The Newton direction (C + λI)⁻¹ g on a block: with which curvature, and what of it is made once for all requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from excise import kfac
from excise.curvature import Kind, Solver, curvature, solve
from excise.errors import warn
from excise.linear import features, has_features
from excise.slices import Block, Slices, trainable
from excise.task import Task

Curvature = Literal["cached", "ggn", "hessian", "fisher"]
CURVATURES = ("cached", "ggn", "hessian", "fisher")
LEAST_DAMPING = 1e-4  # of the cached curvature, which is of low rank: without weight decay it could not be inverted
MOST_FEATURES = 20_000
CLOSE_ENOUGH = 0.03  # residual at which conjugate gradients stop: the step itself is less exact than this

Newton = Callable[[nn.Module, Block, Tensor, Collection[int]], Tensor]
"""(model, block, slope, forgotten ids) -> direction."""


class MovedToCPUWarning(UserWarning):
    """A block did not fit into the device's memory, and was solved on the CPU."""


def sampled_newton(task: Task, ids: Tensor, kind: Kind, solver: Solver, iterations: int) -> Newton:
    """Products with the curvature of some retained samples, computed anew for every request."""

    def direction(model: nn.Module, block: Block, slope: Tensor, forgotten: Collection[int]) -> Tensor:
        retained = ids[~torch.isin(ids, torch.tensor(list(forgotten), dtype=torch.long))]
        operator = curvature(replace(task, model=model), model, block, retained, kind=kind)
        return solve(operator, slope, damping=task.weight_decay, method=solver, iterations=iterations).x

    return direction


def cached_newton(
    task: Task, model: nn.Module, slices: Slices, ids: Tensor, iterations: int, seed: int, *, all_slices: bool = False
) -> Newton | None:
    """The kept curvature of ``kfac``; None for a model that has none.

    Where the linear output layer is all that is trained, it preconditions conjugate gradients with the exact curvature
    of all samples: that costs little there, and convex models deserve an exact step.
    """
    if not kfac.can_cache(task, model, slices):
        return None
    kept = kfac.cache(task, model, slices, ids, seed=seed)
    damping = max(task.weight_decay, LEAST_DAMPING)

    def direction(_: nn.Module, block: Block, slope: Tensor, forgotten: Collection[int]) -> Tensor:
        return kept.to(slope.device).solve(block, slope, damping=damping, without=forgotten)

    if not has_features(task, model, slices):
        if all_slices:  # made now, not in the first request
            block = slices.block(range(len(slices)))
            kept.solve(block, torch.zeros_like(block.gather(trainable(model))), damping=damping)
        return direction
    seen = features(task, model, slices, ids)

    def exact_direction(model: nn.Module, block: Block, slope: Tensor, forgotten: Collection[int]) -> Tensor:
        operator = seen.to(slope.device).curvature(task, model, block, forgotten)
        divide = kept.to(slope.device).precondition(block, damping)
        return solve(
            operator,
            slope,
            damping=task.weight_decay,
            method="cg",
            iterations=iterations,
            tolerance=CLOSE_ENOUGH,
            precondition=divide,
        ).x

    return exact_direction


def where_it_fits(newton: Newton) -> Newton:
    """The same, on the CPU when the device's memory is too small for the block."""

    def direction(model: nn.Module, block: Block, slope: Tensor, forgotten: Collection[int]) -> Tensor:
        try:
            return newton(model, block, slope, forgotten)
        except torch.OutOfMemoryError:
            warn(
                f"the block of {len(slope):,} parameters does not fit on {slope.device}; solving on the CPU.",
                MovedToCPUWarning,
            )
        return newton(copy.deepcopy(model).cpu(), block, slope.cpu(), forgotten).to(slope.device)

    return direction
