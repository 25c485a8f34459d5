"""``KernelRidge``: from the inverse of the kernel matrix, of which rows and columns are left out.

With A the inverse of K + αI, split into rows that stay (r) and go (g), and u = A y, the solution without g is
u_r - A_rg A_gg⁻¹ u_g: the cost is that of a matrix as large as the request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from sklearn.kernel_ridge import KernelRidge
from sklearn.utils.validation import check_array

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles, weights_of
from excise.estimators.kept import Data, Rows
from excise.estimators.normal_equations import WORST


@by_algebra(KernelRidge)
def keep_kernel_ridge(estimator: Any, data: Data) -> Solve:
    """With one α."""
    if np.size(estimator.alpha) > 1:
        raise LeftToFit("each target has an alpha of its own")
    X = doubles(data.X)
    fit_X = check_array(data.X)  # kept by fit as it is, whole numbers too
    y = check_array(data.y, ensure_2d=False, dtype=np.float64).reshape(len(X), -1)
    weights = weights_of(data)
    root = np.ones(len(X)) if weights is None else np.sqrt(weights)
    K = estimator._get_kernel(X) * np.multiply.outer(root, root)
    values, vectors = np.linalg.eigh(K + np.ravel(estimator.alpha) * np.eye(len(X)))
    if not values[0] * WORST > values[-1]:
        raise LeftToFit("the kernel matrix is nearly singular")
    A = (vectors / values) @ vectors.T
    u = A @ (root[:, None] * y)

    def without(gone: Rows) -> Any:
        if 2 * len(gone) > len(X):
            raise LeftToFit("more rows go than stay")
        stay = np.setdiff1d(np.arange(len(X)), gone, assume_unique=True)
        left = u[stay]
        if len(gone):
            left = left - A[np.ix_(stay, gone)] @ linalg.solve(A[np.ix_(gone, gone)], u[gone], assume_a="pos")
        dual = root[stay, None] * left
        new = blank(estimator, data)
        new.X_fit_ = fit_X[stay]
        new.dual_coef_ = dual if estimator.dual_coef_.ndim == 2 else dual[:, 0]
        return new

    return without
