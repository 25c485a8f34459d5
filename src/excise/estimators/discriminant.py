"""``LinearDiscriminantAnalysis`` by its solver ``"lsqr"``: from means and covariance of each class.

The other solvers give axes whose signs, and those of no variance their directions as well, come from how rounding
falls: no other computation gives the same, so these are fitted anew.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.covariance import shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles
from excise.estimators.classes import ByClass
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.normal_equations import WORST


@by_algebra(LinearDiscriminantAnalysis)
def keep_linear_discriminant(estimator: Any, data: Data) -> Solve:
    """Without shrinkage, or by a fixed part."""
    if estimator.solver != "lsqr":
        raise LeftToFit(f"the signs of the axes by the solver {estimator.solver!r} follow from the rows alone")
    if estimator.covariance_estimator is not None or not isinstance(estimator.shrinkage, Real | None):
        raise LeftToFit("the covariance is estimated by more than second moments")
    moments = ByClass(doubles(data.X), data, joint=True)

    def without(gone: Rows) -> Any:
        of = moments.without_losing_any(gone)
        rows = np.array([one.rows for one in of])
        if rows.sum() == len(of):
            raise LeftToFit("there are no more rows than classes")
        new = blank(estimator, data)
        new.classes_ = moments.classes
        new.priors_ = rows / rows.sum() if estimator.priors is None else estimator.priors_.copy()
        new._max_components = new._n_features_out = estimator._max_components
        new.means_ = np.array([one.mean for one in of])
        shrink = estimator.shrinkage or 0.0
        covariances = [shrunk_covariance(one.scatter / one.rows, shrink) for one in of]
        new.covariance_ = np.tensordot(new.priors_, covariances, axes=1)
        coef = _solve(new.covariance_, new.means_)
        intercept = -0.5 * np.sum(new.means_ * coef, axis=1) + np.log(new.priors_)
        if len(of) == 2:
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        new.coef_, new.intercept_ = coef, intercept
        return new

    return without


def _solve(covariance: Floats, means: Floats) -> Floats:
    values = linalg.eigvalsh(covariance)
    if not values[0] * WORST > values[-1]:
        raise LeftToFit("columns are nearly dependent")
    return np.asarray(linalg.solve(covariance, means.T, assume_a="pos").T)
