"""Fitted attributes of two estimators side by side: what differs, and how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

FITTED_IN_PLACE = {"steps", "transformer_list"}  # parameters of Pipeline and FeatureUnion
SMALLEST = 1e-12  # numbers below this are 0 beside rounding


def attributes(estimator: Any) -> dict[str, Any]:
    """What ``fit`` left on an estimator: all but its parameters and the settings of its output."""
    settings = {"_sklearn_output_config", "_metadata_request", *estimator.get_params(deep=False)} - FITTED_IN_PLACE
    return {name: value for name, value in vars(estimator).items() if name not in settings}


def first_difference(one: Any, other: Any, tolerance: float) -> str | None:
    """The attribute in which two fitted estimators differ by more than a share of its size, in words; None if none."""
    for name, mine, theirs in _pairs(one, other):
        apart = _apart(mine, theirs)
        if not apart <= tolerance:
            return name if math.isinf(apart) else f"{name} (by a share of {apart:.2g})"
    return None


def distance(one: Any, other: Any) -> float:
    """The Euclidean distance of all floating-point attributes; NaN where they have another shape."""
    squares = 0.0
    for _, mine, theirs in _pairs(one, other):
        if _is_float(mine) and _is_float(theirs):
            mine, theirs = _numbers(mine), _numbers(theirs)
            if mine.shape != theirs.shape:
                return math.nan
            equal = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            squares += float(np.sum(np.where(equal, 0.0, mine - theirs) ** 2))
    return math.sqrt(squares)


def _pairs(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two trees of attributes, by name; a leaf that only one of them has comes with None."""
    if isinstance(one, BaseEstimator) and type(one) is type(other):
        one, other = attributes(one), attributes(other)
        name = f"{name}." if name else ""
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
        name = f"{name} "
    elif isinstance(one, dict) and isinstance(other, dict):
        name = f"{name} "
    else:
        yield name, one, other
        return
    for key in [*one, *(key for key in other if key not in one)]:
        yield from _pairs(one.get(key), other.get(key), f"{name}{key}")


def _apart(one: Any, other: Any) -> float:
    """How far apart two values are, as a share of the larger; infinite where they can't be compared."""
    if _is_number(one) and _is_number(other):
        return _share(_numbers(one), _numbers(other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return 0.0 if one.shape == other.shape and _equal(one, other) else math.inf
    if type(one) is not type(other):
        return math.inf
    plain = isinstance(one, str | bytes | bool | slice | type(None))
    return 0.0 if not plain or one == other else math.inf  # trees of neighbours and the like follow from the rest


def _share(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return math.inf
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    if np.all(equal):
        return 0.0
    size = np.max(np.abs(np.where(equal & ~np.isfinite(other), 0.0, other)))
    share = float(np.max(np.where(equal, 0.0, np.abs(one - other))) / max(float(size), SMALLEST))
    return math.inf if math.isnan(share) else share


def _equal(one: Any, other: Any) -> bool:
    return all(a is b or a == b or (a != a and b != b) for a, b in zip(one.ravel(), other.ravel(), strict=True))


def _is_number(value: Any) -> bool:
    return sparse.issparse(value) or (np.asarray(value).dtype.kind in "biuf" and not isinstance(value, bool))


def _is_float(value: Any) -> bool:
    return _is_number(value) and (value.dtype if sparse.issparse(value) else np.asarray(value).dtype).kind == "f"


def _numbers(value: Any) -> Any:
    return np.asarray(value.toarray() if sparse.issparse(value) else value, dtype=np.float64)
