"""The Newton step on the slices that carry the samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from excise._support.checks import positive
from excise.curvature.strategies import Cached, InverseCurvature
from excise.errors import NothingForgotten
from excise.slices.slices import Block
from excise.task.parameters import move, trainable
from excise.unlearning.blankets import SelectedSlices
from excise.unlearning.direction import NewtonMethod, influence
from excise.unlearning.method import Applied, Removal, Workspace, register

MOST_TRIES = 8  # of shorter and shorter steps
LITTLE_SHORTER = 0.7  # of a step that spoils answers, which is tried before half of it


@register("step")
@dataclass(frozen=True)
class Step(NewtonMethod):
    """One influence step w_P += (C_P + λI)⁻¹ Σ (∇ℓ + λw) / n, without a pass over the retained samples."""

    size: float = 1.0
    """Multiple of the Newton step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.size, "size")

    @property
    def takes_bfloat16(self) -> bool:
        """Whether weights may be in bfloat16: with kept curvature, whose factors are in single precision."""
        return isinstance(self.curvature, Cached)

    def apply(self, workspace: Workspace, prepared: InverseCurvature, model: nn.Module, removal: Removal) -> Applied:
        """Take the step, or as much of it as the guard allows."""
        picked = self.select(workspace, prepared, model, removal)
        block = self.block(workspace, model, picked)
        removal.stages.begin("taking the step")
        direction = self.size * influence(workspace, prepared, model, block, removal)
        return take(workspace, model, removal, picked, block, direction)


def take(
    workspace: Workspace,
    model: nn.Module,
    removal: Removal,
    picked: SelectedSlices,
    block: Block,
    direction: Tensor,
    then: Callable[[], object] = lambda: None,
) -> Applied:
    """Take a step on the block, or as much of it as the guard allows; ``then`` is done before the guard looks."""
    start, retained = copy.deepcopy(trainable(model)), removal.retained
    share = 1.0 if retained.guard is None else _trusted(block.gather(start), direction)
    guarded = False
    for _ in range(MOST_TRIES):
        move(model, start, block.scatter(share * direction, start))
        then()
        losses = retained.of_each(model)
        loss = retained.mean(losses)
        if loss <= retained.limit and retained.keeps_answers(model):
            return Applied(set(picked.numbers), picked.scores, share, why_shorter(share, guarded), losses)
        guarded = True
        share *= shorter(retained.limit - retained.before, loss - retained.before, share)
    move(model, start, {})
    raise nothing_forgotten(workspace, picked, removal, "step")


def why_shorter(share: float, guarded: bool) -> str:
    """Why a step is not as long as Newton's, as a sentence for people; empty where it is."""
    if guarded:
        return f"the step was shortened to {100 * share:.2g} % to protect the retained samples"
    if share < 1:
        return f"the step was shortened to {share:.2g} of itself, so that it is no longer than the weights it changes"
    return ""


def nothing_forgotten(workspace: Workspace, picked: SelectedSlices, removal: Removal, what: str) -> NothingForgotten:
    """The error that the guard allows nothing, or that no loss is a number any more."""
    slices = tuple(workspace.slices.name(number) for number in picked.numbers)
    limit, before, guard = removal.retained.limit, removal.retained.before, removal.retained.guard
    points = 0.0 if guard is None else guard.points
    if limit == math.inf:
        return NothingForgotten(
            f"after any {what} the loss of retained samples is not finite, so none was taken and nothing is forgotten; "
            "lower the learning rate or the size of the step, or see whether data and weight_decay are as in training.",
            slices,
        )
    return NothingForgotten(
        f"no {what} of the {len(removal.ids)} samples keeps the loss of retained samples below {limit:.3g} (it was "
        f"{before:.3g}) and the accuracy within {points:g} points, so none was taken and nothing is forgotten. Allow "
        "more by guard=Guard(factor=3, points=3) (--guard 3), take another method (--method), or see whether the model "
        "was trained to the end.",
        slices,
    )


def _trusted(weights: Tensor, step: Tensor) -> float:
    """The share of a step at which it is as long as the weights themselves: no step that is longer can be right."""
    length = float(step.norm())
    return min(1.0, float(weights.norm()) / length) if length > 0 else 1.0


def shorter(allowed: float, risen: float, share: float = 1.0) -> float:
    """By which factor to shorten a step whose rise is too large: a loss rises with the square of a small step.

    ``share`` is how much of the whole step it is: near that, one that spoils answers is shortened little by little.
    """
    if risen <= allowed:  # it is the answers that suffer
        return LITTLE_SHORTER if share > 0.5 else 0.5
    return min(0.5, max(1 / 16, 0.9 * (allowed / risen) ** 0.5)) if math.isfinite(risen) else 1 / 16
