"""What objectives that are weighted sums over rows have in common."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from excise.estimators.kept import Floats
from excise.estimators.newton.design import Design


class OverRows:
    """A sum over rows and a penalty."""

    design: Design
    shares: Floats
    """s: the weight of each row, 0 for one that is gone."""
    ridge: Floats
    """ρ: the penalty of each column."""

    @property
    def size(self) -> int:
        """How many weights there are."""
        raise NotImplementedError

    @cached_property
    def total(self) -> float:
        """Of the rows that are left."""
        return float(self.shares.sum())

    @property
    def strength(self) -> float:
        """Of the penalty alone."""
        return float(self.ridge.min())

    @cached_property
    def longest(self) -> float:
        """The length of the longest row that is left."""
        return float(self.design.lengths[self.shares > 0].max(initial=0.0))

    @property
    def origin(self) -> Floats:
        """Weights of 0."""
        return np.zeros(self.size)
