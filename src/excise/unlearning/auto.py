"""The method that chooses the method: by the model, by what there is to compare with, and by the request."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from excise.privacy.convexity import why_not_linear
from excise.task.task import Task
from excise.unlearning.calibrated import Calibrated
from excise.unlearning.drift import Drift
from excise.unlearning.exchangeability import FEWEST_HELD_OUT
from excise.unlearning.method import Applied, Method, Removal, Workspace, register
from excise.unlearning.predicted import Predicted, can_predict
from excise.unlearning.selection import AllSlices
from excise.unlearning.step import Step


@dataclass(frozen=True)
class Choice:
    """A method and why it is the one."""

    method: Method
    why: str


@register("auto")
@dataclass(frozen=True)
class Auto:
    """Choose by what was measured (``docs/which-method.md``), and say what was chosen and why.

    A convex model takes the Newton step of all slices, which has a certificate. All samples of a class are denied. For
    classes told by cross-entropy, with held-out samples to compare with, answers are predicted; for other losses the
    step is as long as held-out samples say. Without these nothing tells how far to go, and L-FOCI's block takes a step.
    """

    heeds_guard: ClassVar[bool] = True

    def check(self, workspace: Workspace) -> None:
        """Refuse what the chosen method refuses."""
        choose(workspace).method.check(workspace)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """Those of the chosen method."""
        return choose(workspace).method.samples(workspace, model)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> tuple[Choice, Any]:
        """What the chosen method prepares."""
        choice = choose(workspace)
        return choice, choice.method.prepare(workspace, model, ids)

    def apply(self, workspace: Workspace, prepared: tuple[Choice, Any], model: nn.Module, removal: Removal) -> Applied:
        """Forget by the chosen method, or by denial where no sample of their classes is left."""
        choice, made = prepared
        if _is_whole_class(workspace.task, removal) and not isinstance(choice.method, Step):
            choice = Choice(Drift.of_class(), "no sample of their class is left")
            made = choice.method.prepare(workspace, model, removal.residual[: choice.method.samples(workspace, model)])
        done = choice.method.apply(workspace, made, model, removal)
        name = getattr(choice.method, "name", type(choice.method).__name__)
        said = f"method {name} was chosen, since {choice.why}"
        return dataclasses.replace(done, shortened="; ".join(filter(None, [said, done.shortened])))


def choose(workspace: Workspace) -> Choice:
    """The method for all requests but those of a whole class."""
    task = workspace.task
    if not workspace.has_slices:
        return Choice(Drift(decay=0.0, push=0.5, lr=0.003), "the model can't be sliced")
    if task.convex or (task.convex is None and why_not_linear(task, task.model) is None):
        return Choice(Step(AllSlices()), "the model is convex, so that its step has a certificate")
    count = 0 if task.test_set is None else len(task.test_set)
    if count < FEWEST_HELD_OUT:
        few = "there is no test_set" if not count else f"test_set has only {count} samples"
        return Choice(Step(), f"{few}, so that nothing tells how far to go; pass held-out samples for a better one")
    if can_predict(workspace):
        return Choice(Predicted(), "there are held-out samples to compare with")
    return Choice(Calibrated(), "there are held-out samples, and the loss is not cross-entropy of one class a sample")


def _is_whole_class(task: Task, removal: Removal) -> bool:
    """Whether no retained sample has a class that the forgotten ones have."""
    asked = torch.cat([task.targets_in(batch) for batch in task.batches(removal.ids)])
    if asked.ndim != 1 or asked.is_floating_point():
        return False
    return not any(bool(torch.isin(task.targets_in(batch), asked).any()) for batch in task.batches(removal.residual))
