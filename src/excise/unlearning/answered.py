"""What a model says about retained and held-out samples before it forgets anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from excise.curvature.margins import Margins, margins
from excise.task.task import Task
from excise.unlearning.exchangeability import HeldOutLoss, Known, held_out_ids
from excise.unlearning.method import Workspace
from excise.unlearning.overlap import warn_of_overlap


@dataclass(frozen=True)
class Answered:
    """Margins of retained samples, and of some held-out ones."""

    retained: Margins
    held_out: Margins
    held_out_ids: Tensor
    """Positions of the latter in the test set."""

    @cached_property
    def held_out_counts(self) -> Tensor:
        """How much each held-out sample counts, so that every class has the share that it has of retained samples.

        Samples without a label count for nothing.
        """
        ours, theirs = self.retained.classes[self.retained.weights > 0], self.held_out.classes
        labelled = (self.held_out.weights > 0).double()
        classes, places = torch.cat([ours, theirs]).unique(return_inverse=True)
        of_class = torch.bincount(places[: len(ours)], minlength=len(classes)).double()
        among = torch.bincount(places[len(ours) :], labelled, minlength=len(classes)).clamp_min(1)
        counts = labelled * (of_class / among)[places[len(ours) :]]
        return counts if bool(counts.any()) else labelled

    @staticmethod
    def by(workspace: Workspace, model: nn.Module, ids: Tensor) -> Answered:
        """What the model says about these retained samples."""
        task, unseen = workspace.task, held_out_ids(workspace.task, workspace.seed)
        known, held_out = margins(task, model, ids), margins(task, model, unseen, task.test_set)
        warn_of_overlap(known.values, held_out.values, len(task.train_set))
        return Answered(known, held_out, unseen)

    def known(self, task: Task, ids: Tensor, measure: Callable[[Tensor], Tensor] = torch.clone) -> Known:
        """Losses of these retained samples, the first ones, or their roots, and those that held-out samples have."""
        few = self.retained.at(torch.arange(len(ids)))
        unseen = HeldOutLoss.by(task, self.held_out_ids, measure(self.held_out.plain_losses), self.held_out.classes)
        weights = measure(few.weights)
        noise = float(weights.mean()) * unseen.noise(few.classes[weights > 0])
        return Known(ids, measure(few.losses), weights * unseen.of_each(few.classes), noise)
