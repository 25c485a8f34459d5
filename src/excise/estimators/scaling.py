"""``StandardScaler``: mean and variance of each column."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from sklearn.preprocessing._data import _handle_zeros_in_scale, _is_constant_feature
from sklearn.utils.sparsefuncs import mean_variance_axis
from sklearn.utils.validation import check_array

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles, weights_of
from excise.estimators.kept import Data, Rows
from excise.estimators.moments import Moments, column_moments
from excise.estimators.sums import Sums, leaf_rows


@by_algebra(StandardScaler)
def keep_scaler(estimator: Any, data: Data) -> Solve:
    """Values that are missing are left out of their columns, as ``fit`` does."""
    is_sparse = sparse.issparse(data.X)
    if not estimator.with_std and (is_sparse or not estimator.with_mean):
        raise LeftToFit("it does no more than count")
    X: Any = _sparse_doubles(data.X) if is_sparse else doubles(data.X, missing=True)
    weights = weights_of(data)

    def summary(rows: Rows) -> Moments:
        return (_sparse_moments if is_sparse else column_moments)(X[rows], None if weights is None else weights[rows])

    cells = (X.nnz if is_sparse else X.size) / len(data)
    sums = Sums(np.arange(len(data)), summary, leaf_rows(X.shape[1], cells))

    def without(gone: Rows) -> Any:
        moments = sums.without(gone)
        if moments is None or not np.all(moments.weight > 0):
            raise LeftToFit("a column has no values")
        new = blank(estimator, data)
        seen = moments.weight.astype(np.asarray(estimator.n_samples_seen_).dtype)
        new.n_samples_seen_ = seen[0] if np.ptp(seen) == 0 else seen
        new.mean_ = moments.mean
        new.var_ = new.scale_ = None
        if estimator.with_std:
            new.var_ = moments.scatter / moments.weight
            constant = _is_constant_feature(new.var_, new.mean_, new.n_samples_seen_)
            new.scale_ = _handle_zeros_in_scale(np.sqrt(new.var_), copy=False, constant_mask=constant)
        return new

    return without


def _sparse_doubles(X: Any) -> Any:
    table = check_array(X, accept_sparse=("csr", "csc"), ensure_all_finite="allow-nan")
    if table.dtype.kind == "f" and table.dtype != np.float64:
        raise LeftToFit(f"X is in {table.dtype}, whose rounding would show")
    return table.tocsr().astype(np.float64)


def _sparse_moments(X: Any, weights: Any) -> Moments:
    """With the zeros that are not stored."""
    mean, variance, weight = mean_variance_axis(X, axis=0, weights=weights, return_sum_weights=True)
    weight = np.asarray(weight, dtype=np.float64)
    there = weight > 0
    return Moments(X.shape[0], weight, np.where(there, mean, 0.0), np.where(there, variance * weight, 0.0))
