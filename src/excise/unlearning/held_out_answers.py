"""Samples known by heart: their answers, once forgotten, by those that held-out samples get.

A network that knows its training samples by heart is so sure of all of them that their margins hardly tell what it
would say without them, and a linear network predicts too little. But exchangeability tells how the answers are
distributed: as those of held-out samples of the same class. Which of them a sample gets is decided by its rank among
the predicted margins of retained samples that were forgotten on trial.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from excise.curvature.margins import Margins

FEWEST = 20  # held-out samples of a class; a class of fewer is taken for any


@dataclass(frozen=True)
class HeldOutAnswers:
    """Margins of held-out samples, and those predicted for retained ones."""

    held_out: Margins
    predicted: Tensor
    """Of retained samples that were forgotten on trial."""
    counts: Tensor | None = None
    """How much each of these counts; None for all the same."""

    @property
    def distance(self) -> float:
        """Kolmogorov-Smirnov: the largest difference between the two distribution functions; 0 if they are the same.

        >>> from_zero = torch.arange(4.0).double()
        >>> HeldOutAnswers(Margins(from_zero, from_zero, from_zero), from_zero + 2).distance
        0.5
        """
        theirs = self.held_out.values.sort().values
        points = torch.cat([self.predicted, theirs])
        share = torch.searchsorted(theirs, points, right=True).double() / len(theirs)
        return float((self._share_below(points, right=True) - share).abs().max())

    def instead_of(self, predicted: Tensor, classes: Tensor) -> Tensor:
        """The margin of a held-out sample of the same class, at the rank that each predicted margin has."""
        count = len(self.predicted)
        ranks = (count * self._share_below(predicted) + 0.5) / (count + 1)
        found = [self._quantile(int(label), float(rank)) for label, rank in zip(classes, ranks, strict=True)]
        return torch.tensor(found, dtype=torch.double)

    def _share_below(self, points: Tensor, *, right: bool = False) -> Tensor:
        """Of what was predicted, the share that is below; with ``right``, below or the same."""
        values, order = self.predicted.sort()
        counts = torch.ones_like(values) if self.counts is None else self.counts[order]
        up_to = torch.cat([counts.new_zeros(1), (counts / counts.sum()).cumsum(0)])
        return up_to[torch.searchsorted(values, points.contiguous(), right=right)]

    def _quantile(self, label: int, rank: float) -> float:
        of_class = self.held_out.values[self.held_out.classes == label]
        among = of_class if len(of_class) >= FEWEST else self.held_out.values
        return float(np.quantile(among.numpy(), min(1.0, rank)))
