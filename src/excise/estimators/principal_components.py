"""``PCA``: from the mean and the covariance of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.moments import Moments, joint_moments
from excise.estimators.normal_equations import WORST
from excise.estimators.sums import Sums, leaf_rows

FULL = ("full", "covariance_eigh")
WIDE, SMALL, TALL = 1000, 500, 10  # how scikit-learn chooses a solver


@by_algebra(PCA)
def keep_principal_components(estimator: Any, data: Data) -> Solve:
    """By solvers that find all components, where these lie well apart."""
    if estimator._fit_svd_solver not in FULL:
        raise LeftToFit(f"the solver {estimator._fit_svd_solver!r} draws at random")
    if estimator.n_components == "mle":
        raise LeftToFit("the number of components is estimated")
    X = doubles(data.X)

    def summary(rows: Rows) -> Moments:
        return joint_moments(X[rows], None)

    sums = Sums(np.arange(len(X)), summary, leaf_rows(X.shape[1] ** 2, X.shape[1]))

    def without(gone: Rows) -> Any:
        moments = sums.without(gone)
        if moments is None or moments.rows <= X.shape[1]:
            raise LeftToFit("there are no more rows than columns")
        new = blank(estimator, data)
        new._fit_svd_solver = _solver(estimator, moments.rows, X.shape[1])
        variances, components = _axes(moments)
        shares = variances / variances.sum()
        k = _how_many(estimator.n_components, shares)
        _check_apart(moments, variances, components, k)
        new.mean_ = moments.mean
        new.n_samples_ = moments.rows
        new.n_components_ = type(estimator.n_components_)(k)
        new.noise_variance_ = np.mean(variances[k:]) if k < len(variances) else 0.0
        new.components_ = components[:k]
        new.explained_variance_ = variances[:k]
        new.explained_variance_ratio_ = shares[:k]
        new.singular_values_ = np.sqrt(variances[:k] * (moments.rows - 1))
        return new

    return without


def _solver(estimator: Any, rows: int, columns: int) -> str:
    """The one that ``fit`` would choose, if it is exact."""
    if estimator.svd_solver != "auto":
        return str(estimator.svd_solver)
    if columns <= WIDE and rows >= TALL * columns:
        return "covariance_eigh"
    if max(rows, columns) > SMALL and 1 <= (estimator.n_components or columns) < 0.8 * min(rows, columns):
        raise LeftToFit("without these rows the solver draws at random")
    return "full"


def _axes(moments: Moments) -> tuple[Floats, Floats]:
    """Variances, the largest first, and directions, the largest entry of each positive."""
    variances, vectors = np.linalg.eigh(moments.scatter / (moments.rows - 1))
    variances, components = variances[::-1].copy(), vectors.T[::-1].copy()
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(len(components)), largest])[:, None]
    return variances, components


def _how_many(n_components: Any, shares: Floats) -> int:
    """Components that ``fit`` would keep."""
    if n_components is None:
        return len(shares)
    if 0 < n_components < 1:
        return int(np.searchsorted(np.cumsum(shares), n_components, side="right")) + 1
    if n_components > len(shares):
        raise LeftToFit("there are more components than columns")
    return int(n_components)


def _check_apart(moments: Moments, variances: Floats, components: Floats, k: int) -> None:
    """Leave to ``fit`` axes, signs and numbers of components that rounding could decide."""
    size = variances[0] + np.sum(moments.mean**2)  # fit may sum squares without centring them
    gaps = -np.diff(variances)[:k] if len(variances) > 1 else variances
    if not min(variances[-1], np.min(gaps, initial=np.inf)) * WORST > size:
        raise LeftToFit("some components have nearly the same variance, or none")
    entries = np.sort(np.abs(components[:k]), axis=1)
    if entries.shape[1] > 1 and np.any(entries[:, -2] * (1 + 1 / WORST) > entries[:, -1]):
        raise LeftToFit("the sign of a component could be either")
