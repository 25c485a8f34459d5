"""Samples known by heart: their answers, once forgotten, by those that held-out samples get.

A network that knows its training samples by heart is so sure of all of them that their margins hardly tell what it
would say without them, and a linear network predicts too little. But exchangeability tells how the answers are
distributed: as those of held-out samples of the same class. Which of them a sample gets is decided by its rank among
the predicted margins of retained samples that were forgotten on trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from excise.curvature.margins import Margins

FEWEST = 20  # held-out samples of a class; a class of fewer is taken for any
BY_HEART = 0.25  # distance of predicted answers to held-out ones (Kolmogorov-Smirnov), from which on they are of no use
USUAL, CHANCE = 160, 1.36  # samples on trial; over their root, what chance stays below in 95 of 100 cases


@dataclass(frozen=True)
class HeldOutAnswers:
    """Margins of held-out samples, and those predicted for retained ones."""

    held_out: Margins
    predicted: Margins
    """Of retained samples that were forgotten on trial."""
    held_out_counts: Tensor | None = None
    """How much each of the former counts; None for all the same."""
    counts: Tensor | None = None
    """The same of the latter. Samples of weight 0, such as those without a label, don't count."""

    @property
    def distance(self) -> float:
        """Kolmogorov-Smirnov: the largest difference between the two distribution functions; 0 if they are the same.

        >>> from_zero, one = torch.arange(4.0).double(), torch.ones(4).double()
        >>> HeldOutAnswers(Margins(from_zero, one, one), Margins(from_zero + 2, one, one)).distance
        0.5
        """
        points = torch.cat([self.predicted.values, self.held_out.values])
        theirs = share_below(points, self.held_out, self.held_out_counts, right=True)
        return float((share_below(points, self.predicted, self.counts, right=True) - theirs).abs().max())

    @property
    def are_needed(self) -> bool:
        """Whether predicted answers are of no use, beyond what few samples on trial differ by for no reason."""
        chance = CHANCE * max(0.0, 1 / math.sqrt(len(self.predicted)) - 1 / math.sqrt(USUAL))
        return bool(self.distance > BY_HEART + chance)

    def instead_of(self, predicted: Tensor, classes: Tensor) -> Tensor:
        """The margin of a held-out sample of the same class, at the rank that each predicted margin has."""
        count = len(self.predicted)
        ranks = (count * share_below(predicted, self.predicted, self.counts) + 0.5) / (count + 1)
        found = [self._quantile(int(label), float(rank)) for label, rank in zip(classes, ranks, strict=True)]
        return torch.tensor(found, dtype=torch.double)

    def _quantile(self, label: int, rank: float) -> float:
        labelled = self.held_out.at(self.held_out.weights > 0)
        of_class = labelled.values[labelled.classes == label]
        among = of_class if len(of_class) >= FEWEST else labelled.values
        return float(np.quantile(among.numpy(), min(1.0, rank)))


def share_below(points: Tensor, margins: Margins, counts: Tensor | None, *, right: bool = False) -> Tensor:
    """The share of margins that are below each point; with ``right``, below or the same."""
    values, order = margins.values.sort()
    each = (margins.weights > 0).double() * (1.0 if counts is None else counts)
    up_to = torch.cat([each.new_zeros(1), (each[order] / each.sum()).cumsum(0)])
    return up_to[torch.searchsorted(values, points.contiguous(), right=right)]
