"""The Newton step of all slices, at the length that held-out samples say is right."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from excise._support.checks import positive, whole
from excise._support.names import fill_in
from excise.curvature.strategies import Cached, Curvature, InverseCurvature, curvature_named
from excise.task.task import evaluating
from excise.unlearning.blankets import SelectedSlices
from excise.unlearning.drift import Drift
from excise.unlearning.exchangeability import Length, length_by_exchangeability, nothing_to_forget
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.selection import AllSlices
from excise.unlearning.step import Step


@dataclass(frozen=True)
class CurvatureAndLength:
    """What all requests share."""

    inverse: InverseCurvature
    length: Length


@register("calibrated")
@dataclass(frozen=True)
class Calibrated:
    """A Newton step of all slices, as long as makes forgotten samples look like held-out ones: see ``exchangeability``.

    It needs ``test_set``, and finds the length once for a model, so that neither it nor the weight decay has to be
    guessed. Where the model knows its training samples no better than held-out ones, it forgets nothing and says so.
    """

    curvature: Curvature = field(default_factory=Cached)
    """With which curvature: an object, or its name: ``"cached"``, ``"ggn"``, ``"hessian"``, ``"fisher"``."""
    groups: int = 8
    """Of random retained samples that are forgotten on trial."""
    lr: float | None = None
    """Learning rate of one pass over the retained samples, during which the step is taken: about what the training
    ended with. It brings back what the step harms where many like samples are forgotten. None for no pass."""

    heeds_guard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fill_in(self, curvature=curvature_named(self.curvature))
        whole(self.groups, "groups")
        if self.lr is not None:
            positive(self.lr, "lr")

    def _step(self, size: float = 1.0) -> Step:
        return Step(AllSlices(), self.curvature, size)

    def _taken(self, length: float) -> Step | Drift:
        """The step at this length, in a pass or without one."""
        if self.lr is None:
            return self._step(length)
        return Drift(push=length, lr=self.lr, curvature=self.curvature)

    def check(self, workspace: Workspace) -> None:
        """Refuse a model that can't be sliced, where the curvature knows slices only."""
        self._step().check(workspace)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """Those that the curvature is taken from."""
        return self._step().samples(workspace, model)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> CurvatureAndLength:
        """The curvature of these samples, and the length by them."""
        step, every = self._step(), SelectedSlices(tuple(range(len(workspace.known_slices))))
        with evaluating(model):
            inverse = step.prepare(workspace, model, ids)
            block = step.block(workspace, model, every)
            length = length_by_exchangeability(
                workspace.task, model, inverse, block, ids, groups=self.groups, seed=workspace.seed
            )
        return CurvatureAndLength(inverse, length)

    def apply(self, workspace: Workspace, prepared: CurvatureAndLength, model: nn.Module, removal: Removal) -> Applied:
        """Take the step, or as much of it as the guard allows."""
        length = prepared.length
        if length.value == 0:
            raise nothing_to_forget(length.known_loss, length.held_out_loss)
        done = self._taken(length.value).apply(workspace, prepared.inverse, model, removal)
        said = f"the step has {length.value:.2g} of Newton's length, at which forgotten samples look like held-out ones"
        if not length.reached:
            said = f"the step has {length.value:.2g} of Newton's length, and held-out samples would ask for more"
        words = "; ".join(filter(None, [said, done.shortened]))
        return dataclasses.replace(done, share=length.value * done.share, shortened=words)
