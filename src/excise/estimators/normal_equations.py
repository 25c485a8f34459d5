"""(S + αI) w = s: the equations that linear least squares and ridge regression come down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from excise.estimators.algebra import LeftToFit
from excise.estimators.kept import Floats
from excise.estimators.moments import Moments

WORST = 1e6  # a larger condition number costs more digits than rounding may


@dataclass(frozen=True)
class Equations:
    """Of k targets on p columns, weighted."""

    S: Floats
    """p × p, centred if there is an intercept."""
    s: Floats
    """p × k."""
    x_mean: Floats
    y_mean: Floats

    def coefficients(self, alphas: Floats) -> Floats:
        """The w of each target, k × p, for an α of each."""
        coef = np.empty(self.s.T.shape)
        for alpha in np.unique(alphas):
            same = alphas == alpha
            coef[same] = _solve(self.S + alpha * np.eye(len(self.S)), self.s[:, same]).T
        return coef

    def intercepts(self, coef: Floats) -> Floats:
        """What is left of each target's mean."""
        return np.asarray(self.y_mean - coef @ self.x_mean)


def equations(joint: Moments, columns: int, intercept: bool) -> Equations:
    """Of moments of columns, then targets.

    >>> from excise.estimators.moments import joint_moments
    >>> line = joint_moments(np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0]]), None)  # y = 2 x + 1
    >>> found = equations(line, 1, intercept=True)
    >>> found.coefficients(np.zeros(1)).round(12), found.intercepts(np.array([[2.0]]))
    (array([[2.]]), array([1.]))
    """
    if not joint.weight > 0:
        raise LeftToFit("no weight is left")
    S, mean = joint.scatter, joint.mean
    if not intercept:
        S, mean = S + joint.weight * np.multiply.outer(mean, mean), np.zeros_like(mean)
    return Equations(S[:columns, :columns], S[:columns, columns:], mean[:columns], mean[columns:])


def _solve(A: Floats, b: Floats) -> Floats:
    """By Cholesky, after each column was brought to one scale, on which its accuracy does not depend."""
    diagonal = np.diag(A)
    if not np.all(diagonal > 0):
        raise LeftToFit("a column does not vary")
    scale = 1 / np.sqrt(diagonal)
    scaled = A * np.multiply.outer(scale, scale)
    factor, failed = lapack.dpotrf(scaled, lower=True)
    rcond = 0.0 if failed else lapack.dpocon(factor, np.abs(scaled).sum(axis=0).max(), uplo="L")[0]
    if rcond * WORST < 1:
        raise LeftToFit("columns are nearly dependent")
    return np.asarray(scale[:, None] * lapack.dpotrs(factor, b * scale[:, None], lower=True)[0])
