"""FOCI as a scikit-learn feature selector."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from excise.statistics.foci import Method, foci, lfoci


class FOCISelector(SelectorMixin, BaseEstimator):
    """Keep the columns that FOCI finds sufficient for y: a selector that needs no number of features and no model.

    Constant columns, which tell nothing and are common in the folds of a cross-validation, are never kept.

    Args:
        max_features: The most columns to keep; None, or a number beyond the columns there are, for no limit.
        stop: Whether to end when no column has T > 0.
        standardize: Whether to bring the columns to one scale first.
        method: ``"full"``, or ``"cheap"``: the best single column.
        keep_first: Keep the best single column even if its T is not positive, so that something is left.
        noise: Standard deviation of L-FOCI's noise; None for FOCI.
        random_state: Seed, RandomState or generator for ties and noise.
        n_jobs: Threads; None for all cores.

    Attributes:
        indices_: The kept columns, in the order of choice.
        scores_: T of each step.
        totals_: T(Y, the first k columns kept).

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 4))
    >>> FOCISelector(random_state=0).fit(X, X[:, 2] ** 2).get_support().tolist()
    [False, False, True, False]
    """

    def __init__(
        self,
        *,
        max_features: int | None = None,
        stop: bool = True,
        standardize: bool = True,
        method: Method = "full",
        keep_first: bool = False,
        noise: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.max_features = max_features
        self.stop = stop
        self.standardize = standardize
        self.method = method
        self.keep_first = keep_first
        self.noise = noise
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> Self:
        """Choose the columns of X for y, which must be numeric (labels of two classes may be text)."""
        X, y = validate_data(self, X, y, ensure_min_samples=3, dtype="numeric", y_numeric=False)
        varying = np.flatnonzero(X.max(axis=0) > X.min(axis=0))
        limit = self.max_features
        if isinstance(limit, int | np.integer):
            limit = min(limit, max(len(varying), 1))
        options = {
            "max_features": limit,
            "stop": self.stop,
            "standardize": self.standardize,
            "method": self.method,
            "keep_first": self.keep_first,
            "random_state": self._seed(),
            "n_jobs": self.n_jobs,
        }
        y = _numbers(y)
        if len(varying) == 0:
            self.indices_, self.scores_, self.totals_ = np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
            return self
        table = X if len(varying) == X.shape[1] else X[:, varying]
        found = foci(table, y, **options) if self.noise is None else lfoci(table, y, noise=self.noise, **options)
        self.indices_, self.scores_, self.totals_ = varying[found.indices], found.scores, found.totals
        return self

    def _seed(self) -> Any:
        if self.random_state is None or isinstance(self.random_state, int | np.integer | np.random.Generator):
            return self.random_state
        return int(check_random_state(self.random_state).randint(2**31))

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        mask = np.zeros(self.n_features_in_, dtype=bool)
        mask[self.indices_] = True
        return mask

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _numbers(y: Any) -> Any:
    """Y as it is, or 0 and 1 where it is the names of two classes."""
    if y.dtype.kind in "OUS":
        classes, codes = np.unique(y.astype(str), return_inverse=True)
        return codes if len(classes) <= 2 else y
    return y
