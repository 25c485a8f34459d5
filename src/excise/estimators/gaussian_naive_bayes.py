"""``GaussianNB``: mean and variance of each column in each class."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles
from excise.estimators.classes import ByClass
from excise.estimators.kept import Data, Rows


@by_algebra(GaussianNB)
def keep_gaussian_naive_bayes(estimator: Any, data: Data) -> Solve:
    """The variance that is added to all is that of all rows without their weights."""
    X = doubles(data.X)
    moments = ByClass(X, data, joint=False)
    unweighted = moments if data.sample_weight is None else ByClass(X, replace(data, sample_weight=None), joint=False)

    def without(gone: Rows) -> Any:
        classes, of = moments.without(gone)
        if estimator.priors is not None and len(classes) < len(moments.classes):
            raise LeftToFit("a class that has a prior is gone")
        weights = np.array([one.weight[0] for one in of])
        if np.any(np.isclose(weights, 0.0)):
            raise LeftToFit("a class has no weight")
        all_rows = reduce(add, unweighted.without(gone)[1])
        new = blank(estimator, data)
        new.classes_ = classes
        new.epsilon_ = estimator.var_smoothing * np.max(all_rows.scatter / all_rows.rows)
        new.theta_ = np.array([one.mean for one in of])
        new.var_ = np.array([one.scatter / one.weight for one in of]) + new.epsilon_
        new.class_count_ = weights
        new.class_prior_ = weights / weights.sum() if estimator.priors is None else np.asarray(estimator.priors, float)
        return new

    return without
