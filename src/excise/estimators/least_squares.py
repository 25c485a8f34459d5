"""``LinearRegression`` and ``Ridge``: from the joint moments of X and y."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.utils.validation import check_array

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles, weights_of
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.moments import Moments, joint_moments
from excise.estimators.normal_equations import Equations, equations
from excise.estimators.sums import Sums, leaf_rows

WIDEST = 1e5  # of singular values, the largest to the smallest


@by_algebra(LinearRegression)
def keep_least_squares(estimator: Any, data: Data) -> Solve:
    """With full rank; where columns depend on each other ``fit`` chooses the shortest solution, and is left to."""
    moments = _Joint(data)

    def without(gone: Rows) -> Any:
        found = moments.equations(gone, estimator.fit_intercept)
        new = blank(estimator, data)
        new.singular_ = _singular_values(found.S, moments.left(gone))
        new.rank_ = type(estimator.rank_)(len(found.S))
        return _with_solution(new, estimator, found, found.coefficients(np.zeros(found.s.shape[1])))

    return without


@by_algebra(Ridge)
def keep_ridge(estimator: Any, data: Data) -> Solve:
    """With solvers that are exact themselves."""
    check_exact_solver(estimator)
    moments = _Joint(data)

    def without(gone: Rows) -> Any:
        found = moments.equations(gone, estimator.fit_intercept)
        alphas = np.ravel(np.asarray(estimator.alpha, dtype=np.float64))
        if len(alphas) not in (1, found.s.shape[1]):
            raise LeftToFit("alpha has another length than y has columns")
        new = blank(estimator, data)
        new.n_iter_ = None
        new.solver_ = estimator.solver_
        return _with_solution(new, estimator, found, found.coefficients(np.resize(alphas, found.s.shape[1])))

    return without


def check_exact_solver(estimator: Any) -> None:
    """Leave to ``fit`` a ridge whose solver stops before its minimum, since it stops where it began from."""
    if estimator.solver not in ("auto", "cholesky", "svd"):
        raise LeftToFit(f"the solver {estimator.solver!r} stops short of the minimum")


class _Joint:
    """Moments of X and y side by side."""

    def __init__(self, data: Data) -> None:
        X = doubles(data.X)
        y = check_array(data.y, ensure_2d=False, dtype=np.float64)
        Z = np.column_stack([X, y])
        weights = weights_of(data)

        def summary(rows: Rows) -> Moments:
            return joint_moments(Z[rows], None if weights is None else weights[rows])

        self._rows, self._columns = X.shape
        self._sums = Sums(np.arange(len(Z)), summary, leaf_rows(Z.shape[1] ** 2, Z.shape[1]))

    def left(self, gone: Rows) -> int:
        """How many rows."""
        return int(self._rows) - len(gone)

    def equations(self, gone: Rows, intercept: bool) -> Equations:
        joint = self._sums.without(gone)
        if joint is None:
            raise LeftToFit("no rows are left")
        return equations(joint, self._columns, intercept)


def _singular_values(S: Floats, rows: int) -> Floats:
    """Of the rows, from the matrix of their products."""
    squares = np.linalg.eigvalsh(S)[::-1]
    if rows < len(S) or not squares[-1] * WIDEST**2 > squares[0]:
        raise LeftToFit("columns depend on each other")
    return np.asarray(np.sqrt(squares))


def _with_solution(new: Any, estimator: Any, found: Equations, coef: Floats) -> Any:
    """An estimator with coefficients and intercept, in the shapes that ``fit`` gave them."""
    new.coef_ = coef if estimator.coef_.ndim == 2 else coef[0]
    new.intercept_ = 0.0
    if estimator.fit_intercept:
        intercepts = found.intercepts(coef)
        new.intercept_ = intercepts if np.ndim(estimator.intercept_) else intercepts[0]
    return new
