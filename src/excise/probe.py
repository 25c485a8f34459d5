"""A small sample of retained data that tells, after every step, whether the rest of the model still works."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.objective import losses_on
from excise.sampling import systematic
from excise.task import Task

MOST, LEAST = 64, 16


@dataclass(frozen=True)
class Probe:
    """Samples, drawn with preference for hard ones, whose weighted mean loss estimates that of all retained samples."""

    ids: Tensor
    weights: Tensor

    def losses(self, task: Task, model: nn.Module) -> Tensor:
        """The samples' losses."""
        return losses_on(task, model, self.ids).double().cpu()

    def mean(self, losses: Tensor, without: Collection[int] = ()) -> float:
        """Mean loss of retained samples, as far as the probe can tell; some samples may be forgotten by now."""
        kept = self.weights * ~torch.isin(self.ids, torch.tensor(list(without), dtype=torch.long))
        return float(losses @ kept / kept.sum()) if kept.any() else float("nan")


def draw_probe(task: Task, model: nn.Module, ids: Tensor, generator: torch.Generator, size: int | None = None) -> Probe:
    """Draw one from the samples; by default a smaller one where inputs are large, since every request looks at it."""
    size = size or max(LEAST, min(MOST, 4 * task.modest_batch(MOST)))
    ids = ids[: 8 * size]
    losses = losses_on(task, model, ids).double().cpu()
    drawn, inclusion = systematic(losses + losses.mean() + 1e-12, size, generator)
    return Probe(ids[drawn], 1 / inclusion)
