"""Several block Newton steps on the objective without the samples: slower, and exact in the end where it is convex."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from excise._support.checks import whole
from excise.curvature.strategies import InverseCurvature
from excise.slices.slices import Block
from excise.task import objective
from excise.task.parameters import move, trainable
from excise.task.task import Task
from excise.unlearning.direction import NewtonMethod
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.selection import largest, slice_norms

SHORTEST = 1e-6  # share of a step that is still tried
SUFFICIENT = 1e-4  # share of the expected fall that a step has to bring (Armijo's rule)


@register("descent")
@dataclass(frozen=True)
class Descent(NewtonMethod):
    """Block Newton steps on F over the retained samples, each with a line search; the first block is the selection's.

    Later blocks are the slices of largest gradient, so that every slice's turn comes and the steps converge. No guard
    is needed: the objective of the retained samples only falls.
    """

    steps: int = 8

    heeds_guard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.steps, "steps")

    def apply(self, workspace: Workspace, prepared: InverseCurvature, model: nn.Module, removal: Removal) -> Applied:
        """Take the steps."""
        picked = self.select(workspace, prepared, model, removal)
        numbers, scores, least = set(picked.numbers), dict(picked.scores), 1.0
        removal.stages.begin("taking steps", self.steps)
        for step in range(self.steps):
            gradients = objective.objective_gradient(workspace.task, model, removal.residual)
            if step > 0 and picked.numbers:
                share = min(1.0, len(picked.numbers) / len(workspace.slices))
                picked = largest(slice_norms(workspace.slices, gradients), share=share)
            block = self.block(workspace, model, picked)
            least = min(least, _descend(workspace.task, prepared, model, block, gradients, removal))
            removal.stages.advance()
            numbers, scores = numbers | set(picked.numbers), scores | picked.scores
        words = f"the line search shortened steps, the shortest to {least:.2g} of itself" if least < 1 else ""
        return Applied(numbers, scores, least, words)


def _descend(
    task: Task,
    inverse: InverseCurvature,
    model: nn.Module,
    block: Block,
    gradients: dict[str, Tensor],
    removal: Removal,
) -> float:
    """A step, halved until the objective falls: it can't diverge. Gives the share that was taken."""
    start, gradient = copy.deepcopy(trainable(model)), block.gather(gradients)
    direction = -inverse.solve(model, block, gradient, without=removal.gone)
    value = objective.value(task, model, removal.residual)
    expected = float(gradient @ direction)
    share = 1.0
    while share > SHORTEST:
        move(model, start, block.scatter(share * direction, start))
        if objective.value(task, model, removal.residual) <= value + SUFFICIENT * share * expected:
            return share
        share /= 2
    move(model, start, {})
    return 0.0
