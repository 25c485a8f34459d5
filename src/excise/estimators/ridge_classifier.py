"""``RidgeClassifier``: a ridge regression on -1 and 1, from the moments of each class."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeClassifier

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra, doubles
from excise.estimators.classes import ByClass
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.least_squares import check_exact_solver
from excise.estimators.moments import Moments
from excise.estimators.normal_equations import Equations


@by_algebra(RidgeClassifier)
def keep_ridge_classifier(estimator: Any, data: Data) -> Solve:
    """The targets are the same for all rows of a class, so the moments of classes tell all."""
    check_exact_solver(estimator)
    if np.ndim(data.y) == 2 and np.shape(data.y)[1] > 1:
        raise LeftToFit("there are several labels for each row")
    moments = ByClass(doubles(data.X), data, joint=True)

    def without(gone: Rows) -> Any:
        classes = _weighted(estimator.class_weight, moments.classes, moments.without_losing_any(gone))
        found = _equations(classes, estimator.fit_intercept)
        coef = found.coefficients(np.full(found.s.shape[1], float(estimator.alpha)))
        new = blank(estimator, data)
        new._label_binarizer = deepcopy(estimator._label_binarizer)
        new.classes_ = moments.classes
        new.n_iter_ = None
        new.solver_ = estimator.solver_
        new.coef_ = coef if estimator.coef_.ndim == 2 else coef[0]
        new.intercept_ = found.intercepts(coef) if estimator.fit_intercept else 0.0
        return new

    return without


def _weighted(class_weight: Any, classes: Any, moments: list[Moments]) -> list[Moments]:
    """The moments of classes, heavier by the weights of these."""
    if class_weight is None:
        return moments
    if class_weight == "balanced":
        rows = sum(one.rows for one in moments)
        return [one.scaled(rows / (len(moments) * one.rows)) for one in moments]
    return [one.scaled(class_weight.get(label, 1.0)) for label, one in zip(classes.tolist(), moments, strict=True)]


def _equations(classes: list[Moments], intercept: bool) -> Equations:
    """Those of a target for each class, which is 1 in it and -1 elsewhere; two classes share one."""
    total = reduce(add, classes)
    if not total.weight > 0:
        raise LeftToFit("no weight is left")
    targets = 2 * np.eye(len(classes)) - 1
    if len(classes) == 2:
        targets = targets[:, 1:]
    weights = np.array([float(one.weight) for one in classes])
    means = np.array([one.mean for one in classes])
    S, x_mean, y_mean = total.scatter, total.mean, weights @ targets / weights.sum()
    if not intercept:
        S, x_mean, y_mean = S + total.weight * np.multiply.outer(x_mean, x_mean), 0 * x_mean, 0 * y_mean
    s: Floats = (weights[:, None] * (means - x_mean)).T @ (targets - y_mean)
    return Equations(S, s, x_mean, y_mean)
