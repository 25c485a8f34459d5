"""Estimators that follow from sums over rows: computed from those of the other rows, where sums are accurate enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import check_array, validate_data

from excise.estimators.comparing import distance
from excise.estimators.kept import Data, Floats, Keep, Kept, Options, Refit, Rows, way_for
from excise.estimators.refitting import Again, on_its_data

Solve = Callable[[Rows], Any]
"""The estimator without these rows."""


class LeftToFit(Exception):
    """Sums can't give what ``fit`` gives; the message says why, for people."""


@dataclass(frozen=True)
class FromSums:
    """An estimator that is computed from sums, and fitted anew where these do not suffice."""

    estimator: Any
    data: Data
    solve: Solve

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Leave the rows out of the sums."""
        try:
            new = self.solve(gone)
        except LeftToFit as why:
            return Again(self.estimator, self.data, str(why)).without(gone, last)
        before = self.estimator if last is None else last
        words = "Computed in closed form: equal to a fit on the other rows up to rounding."
        return Refit(new, 0.0, distance(new, before), words)


def by_algebra(*types: type) -> Callable[[Callable[[Any, Data], Solve]], Keep]:
    """Make a function that prepares sums known as the way for these types."""

    def known(prepare: Callable[[Any, Data], Solve]) -> Keep:
        @way_for(*types)
        def keep(estimator: Any, data: Data, options: Options) -> Kept:
            kept: Kept
            try:
                kept = FromSums(estimator, data, prepare(estimator, data))
            except LeftToFit as why:
                kept = Again(estimator, data, str(why))
            except ValueError:  # fit does not take such data either, and says why
                kept = Again(estimator, data)
            return kept if options.trusted else on_its_data(kept, estimator, data)

        return keep

    return known


def blank(estimator: Any, data: Data) -> Any:
    """A copy that knows nothing but the columns."""
    new = clone(estimator)
    validate_data(new, data.X, skip_check_array=True)
    return new


def doubles(X: Any, *, missing: bool = False) -> Floats:
    """A dense table in double precision, unless ``fit`` would compute in another layout or precision."""
    if sparse.issparse(X):
        raise LeftToFit("X is sparse")
    table = check_array(X, ensure_all_finite="allow-nan" if missing else True)
    if table.dtype.kind == "f" and table.dtype != np.float64:
        raise LeftToFit(f"X is in {table.dtype}, whose rounding would show")
    return np.asarray(table, dtype=np.float64)


def weights_of(data: Data) -> Floats | None:
    """Weights, of which none is negative."""
    if data.sample_weight is not None and np.any(data.sample_weight < 0):
        raise LeftToFit("a weight is negative")
    return data.sample_weight
