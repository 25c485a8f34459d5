"""The Newton step at the length that held-out samples say is right."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from excise._support.checks import require, whole
from excise._support.names import fill_in
from excise._support.progress import Stages
from excise.curvature.strategies import Cached, Curvature, InverseCurvature, curvature_named, trace_of
from excise.errors import NothingForgotten
from excise.slices.slices import Block
from excise.task.ids import all_but
from excise.task.task import evaluating
from excise.unlearning.direction import influence
from excise.unlearning.exchangeability import Known, Trials, forget_on_trial, nothing_to_forget
from excise.unlearning.guard import Retained
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.selection import AllSlices, SliceSelection, selection_named
from excise.unlearning.settling import SETTLED, settle
from excise.unlearning.step import Step, take


@dataclass(frozen=True)
class CurvatureAndTrials:
    """What all requests share."""

    inverse: InverseCurvature
    trials: Trials
    """Which tell how long a step must be."""


@register("calibrated")
@dataclass(frozen=True)
class Calibrated:
    """A Newton step, of all slices unless told otherwise, as long as makes forgotten samples look like held-out ones.

    See ``exchangeability``. It needs ``test_set``, and finds the length once for a model, so that neither it nor the
    weight decay has to be guessed. Where the model knows its training samples no better than held-out ones, it forgets
    nothing and says so.
    """

    curvature: Curvature = field(default_factory=Cached)
    """With which curvature: an object, or its name: ``"cached"``, ``"ggn"``, ``"hessian"``, ``"fisher"``."""
    selection: SliceSelection = field(default_factory=AllSlices)
    """Which slices move, as in ``Step``. A block of some, such as L-FOCI's, is chosen for every group on trial as well,
    which takes as long as so many requests."""
    groups: int = 8
    """Of retained samples that are forgotten on trial."""
    settle: bool = False
    """Whether a gentle pass over retained samples follows, which brings back what the step harms (see ``settling``)."""

    heeds_guard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fill_in(self, curvature=curvature_named(self.curvature), selection=selection_named(self.selection))
        whole(self.groups, "groups")
        require(isinstance(self.settle, bool), "settle", self.settle, "True or False")

    def _step(self) -> Step:
        return Step(self.selection, self.curvature)

    def check(self, workspace: Workspace) -> None:
        """Refuse a model that can't be sliced, where the curvature knows slices only."""
        self._step().check(workspace)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """Those that the curvature is taken from."""
        return self._step().samples(workspace, model)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> CurvatureAndTrials:
        """The curvature of these samples, and the length by them."""
        with evaluating(model):
            return self.prepare_from(workspace, model, Known.of(workspace.task, model, ids, workspace.seed))

    def prepare_from(self, workspace: Workspace, model: nn.Module, known: Known) -> CurvatureAndTrials:
        """The same for who knows what the samples' losses are, and those of held-out ones."""
        step, task, ids = self._step(), workspace.task, known.ids
        with evaluating(model):
            inverse = step.prepare(workspace, model, ids)

            def block_of(group: Tensor) -> Block:
                picked = step.select(workspace, inverse, model, _on_trial(workspace, group))
                return step.block(workspace, model, picked)

            trials = forget_on_trial(task, model, inverse, block_of, known, groups=self.groups, seed=workspace.seed)
        return CurvatureAndTrials(inverse, trials)

    def apply(self, workspace: Workspace, prepared: CurvatureAndTrials, model: nn.Module, removal: Removal) -> Applied:
        """Take the step, or as much of it as the guard allows."""
        length = prepared.trials.length(without=removal.gone)
        if length.value == 0:
            raise nothing_to_forget(length.known_loss, length.held_out_loss)
        done = self._taken(workspace, prepared.inverse, length.value, model, removal)
        said = f"the step has {length.value:.2g} of Newton's length, at which forgotten samples look like held-out ones"
        if not length.reached:
            said = f"the step has {length.value:.2g} of Newton's length, and held-out samples would ask for more"
        words = "; ".join(filter(None, [said, done.shortened]))
        return dataclasses.replace(done, share=length.value * done.share, shortened=words)

    def _taken(
        self, workspace: Workspace, inverse: InverseCurvature, length: float, model: nn.Module, removal: Removal
    ) -> Applied:
        """The step at its length, settled if that is asked for and the guard allows it."""
        step = self._step()
        picked = step.select(workspace, inverse, model, removal)
        block = step.block(workspace, model, picked)
        removal.stages.begin("taking the step")
        direction = length * influence(workspace, inverse, model, block, removal)
        to_take = workspace, model, removal, picked, block, direction
        if self.settle:
            with suppress(NothingForgotten):  # then the pass itself may be what harms
                chosen = None if isinstance(self.selection, AllSlices) else self.selection
                how = workspace.task, model, block, removal.residual, trace_of(inverse), removal.seed, chosen
                done = take(*to_take, lambda: settle(*how))
                return dataclasses.replace(done, shortened="; ".join(filter(None, [SETTLED, done.shortened])))
        return take(*to_take)


def _on_trial(workspace: Workspace, group: Tensor) -> Removal:
    """A request to forget some retained samples, which nobody made."""
    ids, task = group.tolist(), workspace.task
    residual = all_but(ids, len(task.train_set))
    return Removal(ids, residual, frozenset(ids), workspace.seed, Stages(enabled=False), Retained.unguarded(task))
