"""Moments of each class by itself, for classifiers that follow from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from excise.estimators.algebra import LeftToFit, weights_of
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.moments import Moments, column_moments, joint_moments
from excise.estimators.sums import Sums, leaf_rows


def labels_of(y: Any) -> tuple[Any, Any]:
    """The classes, sorted, and the number of each row's class."""
    labels = column_or_1d(y)
    check_classification_targets(labels)
    return np.unique(labels, return_inverse=True)


class ByClass:
    """Moments of the rows of each class, of all pairs of columns or of each column alone."""

    def __init__(self, X: Floats, data: Data, *, joint: bool) -> None:
        self.classes, codes = labels_of(data.y)
        self._sums = [_moments(X, np.flatnonzero(codes == c), data, joint) for c in range(len(self.classes))]

    def without(self, gone: Rows) -> tuple[Any, list[Moments]]:
        """The classes that are left, and the moments of each."""
        moments = [sums.without(gone) for sums in self._sums]
        there = [one for one in moments if one is not None]
        if len(there) < 2:
            raise LeftToFit("less than two classes are left")
        return self.classes[[one is not None for one in moments]], there

    def without_losing_any(self, gone: Rows) -> list[Moments]:
        """The moments of each class, if there are rows of all."""
        classes, moments = self.without(gone)
        if len(classes) < len(self.classes):
            raise LeftToFit("a class is gone")
        return moments


def _moments(X: Floats, rows: Rows, data: Data, joint: bool) -> Sums[Moments]:
    weights = weights_of(data)
    of: Callable[[Floats, Floats | None], Moments] = joint_moments if joint else column_moments
    columns = X.shape[1]

    def summary(some: Rows) -> Moments:
        return of(X[some], None if weights is None else weights[some])

    return Sums(rows, summary, leaf_rows(columns**2 if joint else columns, columns))
