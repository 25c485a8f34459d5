"""What a model says about retained and held-out samples before it forgets anything."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from excise.curvature.margins import Margins, margins
from excise.unlearning.exchangeability import held_out_ids
from excise.unlearning.method import Workspace


@dataclass(frozen=True)
class Answered:
    """Margins of retained samples, and of some held-out ones."""

    retained: Margins
    held_out: Margins
    held_out_ids: Tensor
    """Positions of the latter in the test set."""

    @staticmethod
    def by(workspace: Workspace, model: nn.Module, ids: Tensor) -> Answered:
        """What the model says about these retained samples."""
        task, unseen = workspace.task, held_out_ids(workspace.task, workspace.seed)
        return Answered(margins(task, model, ids), margins(task, model, unseen, task.test_set), unseen)
