"""What a model says about retained and held-out samples before it forgets anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.curvature.margins import Margins, margins
from excise.task.task import Task
from excise.unlearning.exchangeability import HeldOutLoss, Known, held_out_ids
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

    def known(self, task: Task, ids: Tensor, measure: Callable[[Tensor], Tensor] = torch.clone) -> Known:
        """Losses of these retained samples, the first ones, or their roots, and those that held-out samples have."""
        few = self.retained.at(torch.arange(len(ids)))
        unseen = HeldOutLoss.by(task, self.held_out_ids, measure(self.held_out.plain_losses), self.held_out.classes)
        weights = measure(few.weights)
        noise = float(weights.mean()) * unseen.noise
        return Known(ids, measure(few.losses), weights * unseen.of_each(few.classes), noise)
