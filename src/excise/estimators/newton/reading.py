"""The data of an estimator as arrays, checked against what the estimator says of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d

from excise.errors import InputError
from excise.estimators.kept import Data, Floats, Options
from excise.estimators.newton.design import Design


def read_design(estimator: Any, data: Data, options: Options) -> Design:
    """X in double precision."""
    try:
        X = check_array(data.X, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
    except ValueError as error:
        raise InputError(f"X: {error}") from error
    expected = getattr(estimator, "n_features_in_", X.shape[1])
    if X.shape[1] != expected and not options.trusted:
        raise InputError(
            f"X has {X.shape[1]} columns, but {type(estimator).__name__} was fitted on {expected}; pass the same X."
        )
    return Design(X.astype(np.float64, copy=False), bool(estimator.fit_intercept))


def read_targets(data: Data) -> NDArray[Any]:
    """The column y."""
    try:
        y = column_or_1d(data.y, warn=False)
    except ValueError as error:
        raise InputError(f"y must be one column: {error}") from error
    if len(y) != len(data):
        raise InputError(f"y has {len(y)} rows and X {len(data)}; pass what was passed to fit.")
    return np.asarray(y)


def read_numbers(data: Data) -> Floats:
    """The column y, of finite numbers."""
    try:
        y = read_targets(data).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y must be numbers: {error}") from error
    if not np.isfinite(y).all():
        raise InputError(f"y has {int((~np.isfinite(y)).sum())} values that are not finite; pass the y of the fit.")
    return y


def read_labels(estimator: Any, data: Data, options: Options) -> NDArray[Any]:
    """The column y, of the classes that the estimator knows."""
    y = read_targets(data)
    classes = np.unique(y)
    if not (options.trusted or np.array_equal(classes, estimator.classes_)):
        raise InputError(
            f"y has the classes {classes.tolist()!r:.200}, but {type(estimator).__name__} was fitted on "
            f"{np.asarray(estimator.classes_).tolist()!r:.200}; pass the same y."
        )
    return y


def read_weights(data: Data) -> Floats:
    """Weights of samples: 1 for each if none were given."""
    rows = len(data)
    if data.sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(data.sample_weight, dtype=np.float64)
    weights = np.full(rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (rows,):
        raise InputError(f"sample_weight has shape {weights.shape}, but X has {rows} rows; pass a weight for each.")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise InputError(
            "sample_weight has negative or infinite values, with which the objective may have no minimum; use weights "
            "of 0 or more."
        )
    return weights


def dense(estimator: Any) -> Any:
    """The estimator, or a copy with ``coef_`` as an array where it was made sparse."""
    if not sparse.issparse(estimator.coef_):
        return estimator
    estimator = copy.deepcopy(estimator)
    estimator.coef_ = estimator.coef_.toarray()
    return estimator
