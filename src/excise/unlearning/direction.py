"""What methods that go along a Newton direction share: a selection of slices, a curvature, and the direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from excise._support.names import fill_in
from excise.curvature.strategies import GGN, Cached, Curvature, InverseCurvature, OnCPUIfTooLarge, curvature_named
from excise.slices.slices import Block, whole_model_block
from excise.task import objective
from excise.task.task import evaluating
from excise.unlearning.blankets import SelectedSlices
from excise.unlearning.method import Removal, Workspace
from excise.unlearning.selection import AllSlices, PerLayer, SliceSelection, selection_named
from excise.unlearning.suitability import warn_of_untouched


@dataclass(frozen=True)
class NewtonMethod:
    """A selection and a curvature."""

    selection: SliceSelection = field(default_factory=PerLayer)
    """Which slices to update: an object such as ``PerLayer(share=0.3)``, or its name: ``"per-layer"``, ``"joint"``,
    ``"cheap"``, ``"one"``, ``"random"``, ``"largest-change"``, ``"all"``; or a function of workspace and removal that
    gives slice numbers."""
    curvature: Curvature = field(default_factory=Cached)
    """With which curvature: an object, or its name: ``"cached"``, ``"ggn"``, ``"hessian"``, ``"fisher"``."""

    heeds_guard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fill_in(self, selection=selection_named(self.selection), curvature=curvature_named(self.curvature))

    def check(self, workspace: Workspace) -> None:
        """Refuse a model that can't be sliced, and warn of parameters outside slices that stay as they are."""
        if not self._moves_whole_model:
            warn_of_untouched(workspace.task.model, workspace.slices)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """Those that the curvature is taken from."""
        return self.curvature.count(workspace.task, model, workspace.known_slices)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> InverseCurvature:
        """The curvature of these samples."""
        with evaluating(model):
            return prepare_curvature(self.curvature, workspace, model, ids, all_slices=self._moves_all)

    @property
    def _moves_all(self) -> bool:
        return isinstance(self.selection, AllSlices)

    @property
    def _moves_whole_model(self) -> bool:
        return self._moves_all and not self.curvature.knows_slices_only

    def select(
        self, workspace: Workspace, inverse: InverseCurvature, model: nn.Module, removal: Removal
    ) -> SelectedSlices:
        """The slices to update."""
        return self.selection.select(workspace, inverse, model, removal)

    def block(self, workspace: Workspace, model: nn.Module, picked: SelectedSlices) -> Block:
        """What is updated: of all slices, where the curvature knows them, also parameters that belong to none."""
        if self._moves_whole_model:
            return whole_model_block(model)
        return workspace.slices.block(picked.numbers)


def prepare_curvature(
    curvature: Curvature, workspace: Workspace, model: nn.Module, ids: Tensor, *, all_slices: bool
) -> InverseCurvature:
    """The curvature of these samples, solved on the CPU where the device is too small.

    Of a model that can't be sliced nothing can be kept, so that the Gauss-Newton matrix is computed for every request.
    """
    task, slices = workspace.task, workspace.known_slices
    if not len(slices) and curvature.knows_slices_only:
        curvature = GGN(len(ids))
    return OnCPUIfTooLarge(curvature.prepare(task, model, slices, ids, seed=workspace.seed, all_slices=all_slices))


def influence(
    workspace: Workspace, inverse: InverseCurvature, model: nn.Module, block: Block, removal: Removal
) -> Tensor:
    """The samples' Newton step (C_P + λI)⁻¹ Σ (∇ℓ + λw) / n."""
    downhill = objective.removal_gradient(workspace.task, model, removal.ids, len(removal.residual))
    return inverse.solve(model, block, block.gather(downhill), without=removal.gone)
