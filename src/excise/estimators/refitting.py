"""Fit anew on the other rows: exact for every estimator whose ``fit`` gives the same each time, at the cost of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from excise.errors import InputError
from excise.estimators.comparing import distance, first_difference
from excise.estimators.kept import NO_ROWS, Data, Kept, Refit, Rows

SAME = 1e-6  # the share of its size by which an attribute may differ, computed in another way from the same data


@dataclass(frozen=True)
class Again:
    """An estimator that is fitted anew for each request."""

    estimator: Any
    data: Data
    why: str = ""
    """Why nothing better is done, for people."""

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Fit a copy on the other rows."""
        before = self.estimator if last is None else last
        new = fitted(self.estimator, self.data, gone)
        because = f", since {self.why}" if self.why else ""
        return Refit(new, 0.0, distance(new, before), f"Fitted anew on the other rows{because}: exact.")


def fitted(estimator: Any, data: Data, gone: Rows) -> Any:
    """A copy that is fitted on the other rows."""
    rest = data.without(gone)
    weights = {} if rest.sample_weight is None else {"sample_weight": rest.sample_weight}
    try:
        return clone(estimator).fit(rest.X, rest.y, **weights)
    except (ValueError, TypeError, NotImplementedError, np.linalg.LinAlgError) as error:
        name = type(estimator).__name__
        if len(gone):
            raise InputError(
                f"rows: without them {len(rest)} of {len(data)} rows are left, on which {name} can't be fitted: {error}"
            ) from error
        raise InputError(f"X, y: {name} can't be fitted on them: {error}; pass what it was fitted on.") from error


def on_its_data(kept: Kept, estimator: Any, data: Data) -> Kept:
    """What is kept, after a look whether the data are those of the fit: without no rows it must give the estimator.

    What was computed in another way than ``fit`` does and is not what it gave, is left to ``fit``.
    """
    differs = first_difference(kept.without(NO_ROWS).estimator, estimator, SAME)
    if differs is not None and not isinstance(kept, Again):
        kept = Again(estimator, data, f"{differs} can't be had from sums exactly")
        differs = first_difference(kept.without(NO_ROWS).estimator, estimator, SAME)
    if differs is not None:
        raise InputError(
            f"X, y: {type(estimator).__name__} fitted on them differs from the estimator in {differs}; pass X, y and "
            "sample_weight as they were given to fit, in the same order."
        )
    return kept
