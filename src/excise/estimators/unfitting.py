"""``unfit``: the estimator that ``fit`` on the other rows would have given, with a certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from excise._support.checks import number
from excise.errors import InputError
from excise.estimators import (  # noqa: F401  importing them makes their ways known
    discriminant,
    fitted_anew,
    gaussian_naive_bayes,
    kernel_ridge,
    least_squares,
    naive_bayes,
    newton,
    principal_components,
    ridge_classifier,
    scaling,
)
from excise.estimators.composition import keep
from excise.estimators.kept import NO_ROWS, Data, Floats, Kept, Options, Rows
from excise.estimators.refusals import check_estimator
from excise.estimators.rows import read_rows


@dataclass(frozen=True, eq=False)
class Unfitted:
    """An estimator without some rows."""

    estimator: Any
    """A new one; the one that was given is as it was."""
    rows: Rows
    """What this request took out: positions in X, sorted."""
    gone: Rows
    """What all requests so far took out."""
    bound: float
    """The Euclidean distance of the fitted parameters to those of a fit on the other rows is at most this; 0 where
    they are equal up to rounding."""
    moved: float
    """How far the request moved the parameters; NaN where there are others than before, as when a class is gone."""
    words: str
    """What was done, and what is guaranteed."""

    @property
    def share_left(self) -> float:
        """The certified distance that may be left, as a share of the distance moved."""
        if self.bound == 0:
            return 0.0
        return self.bound / self.moved if self.moved else math.inf


class Unfitter:
    """Takes rows out of a fitted scikit-learn estimator, one request after the other.

    Args:
        estimator: Fitted; it is never changed.
        X: What it was fitted on; not copied, so leave it as it is.
        y: Likewise.
        sample_weight: Likewise, if weights were passed to ``fit``.
        tolerance: The certified distance that may be left, as a share of the distance moved, by estimators that are
            solved by iteration. Those solved by algebra leave none.
        finish: Whether an estimator whose solver stopped early is first brought to its minimum.

    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 3.0, 5.0, 100.0])
    >>> unfitter = Unfitter(LinearRegression().fit(X, y), X, y)
    >>> unfitter.unfit([3]).estimator.predict([[3.0]]).round(9)
    array([7.])
    >>> unfitter.unfit([0]).gone
    array([0, 3])
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        tolerance: float = 1e-4,
        finish: bool = False,
    ) -> None:
        check_estimator(estimator)
        _check_fitted(estimator)
        self.estimator = estimator
        self._options = Options(number(tolerance, "tolerance", positive=True), bool(finish))
        self._data = _data(estimator, X, y, sample_weight)
        self._kept: Kept | None = None
        self._gone = NO_ROWS
        self._last: Any = None

    def prepare(self) -> Self:
        """Make what all requests share, and check that X and y are what the estimator was fitted on."""
        self._prepared()
        return self

    def unfit(self, rows: Any) -> Unfitted:
        """Take rows out, beyond those of earlier requests.

        Args:
            rows: Positions in the X that was given first, or a mask of booleans.
        """
        asked = read_rows(rows, len(self._data), self._gone)
        gone = np.union1d(self._gone, asked)
        refit = self._prepared().without(gone, self._last)
        self._gone, self._last = gone, refit.estimator
        return Unfitted(refit.estimator, asked, gone.copy(), refit.bound, refit.moved, refit.words)

    def _prepared(self) -> Kept:
        if self._kept is None:
            self._kept = keep(self.estimator, self._data, self._options)
        return self._kept


def unfit(
    estimator: Any,
    X: Any,
    y: Any = None,
    rows: Any = (),
    *,
    sample_weight: Any = None,
    tolerance: float = 1e-4,
    finish: bool = False,
) -> Unfitted:
    """The estimator that ``fit`` on the other rows would have given.

    ``Unfitter`` is the same for several requests, which share most of the work.

    Args:
        estimator: A fitted scikit-learn estimator; it is never changed.
        X: What it was fitted on.
        y: Likewise.
        rows: Which rows of X shall go: positions, counted from 0, or a mask of booleans.
        sample_weight: Weights that were passed to ``fit``, if any.
        tolerance: See ``Unfitter``.
        finish: See ``Unfitter``.

    >>> from sklearn.preprocessing import StandardScaler
    >>> X = np.array([[1.0], [3.0], [1000.0]])
    >>> unfit(StandardScaler().fit(X), X, rows=[2]).estimator.mean_
    array([2.])
    """
    unfitter = Unfitter(estimator, X, y, sample_weight=sample_weight, tolerance=tolerance, finish=finish)
    return unfitter.unfit(rows)


def _check_fitted(estimator: Any) -> None:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise InputError(f"estimator: this {type(estimator).__name__} is not fitted; call fit(X, y) first.") from None


def _data(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Data:
    """What was passed, if it is of one length; of a sparse format whose rows can be had one by one."""
    if sparse.issparse(X) and X.format not in ("csr", "csc"):
        X = X.tocsr()
    data = Data(X, y, _weights(estimator, sample_weight))
    for name, values in (("y", y), ("sample_weight", data.sample_weight)):
        if values is not None and len(Data(values)) != len(data):
            raise InputError(
                f"{name} must have as many entries as X has rows, but it has {len(Data(values))} and X {len(data)}; "
                "pass what was given to fit."
            )
    return data


def _weights(estimator: Any, sample_weight: Any) -> Floats | None:
    if sample_weight is None:
        return None
    if not has_fit_parameter(estimator, "sample_weight"):
        raise InputError(
            f"sample_weight: {type(estimator).__name__}.fit takes none; leave it out, or fit the estimator inside by "
            "itself."
        )
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim != 1:
        raise InputError(f"sample_weight must be one number for each row of X, but has shape {weights.shape}.")
    return weights
