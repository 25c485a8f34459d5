"""``LinearSVC`` and ``LinearSVR`` with squared losses."""

from __future__ import annotations

from typing import Any

from sklearn.svm import LinearSVC, LinearSVR

from excise.errors import NotYetSupportedError
from excise.estimators.kept import Data, Kept, Options, way_for
from excise.estimators.newton.keeping import keep_minimum
from excise.estimators.newton.kinds import Classification, Penalty, Regression
from excise.estimators.newton.losses import SquaredHinge, SquaredInsensitive
from excise.estimators.newton.reading import dense, read_design, read_labels, read_numbers, read_weights
from excise.estimators.newton.stopping import Stopping


@way_for(LinearSVC)
def keep_linear_svc(estimator: Any, data: Data, options: Options) -> Kept:
    """C Σ max(0, 1 - tz)² + ½ ‖coef‖² for each class, with the intercept penalised as a column."""
    for name, right in (("loss", "squared_hinge"), ("penalty", "l2"), ("multi_class", "ovr")):
        if getattr(estimator, name) != right:
            raise NotYetSupportedError(
                f"estimator: LinearSVC with {name}={getattr(estimator, name)!r} has no curvature at its minimum that a "
                f"Newton step could go by; use {name}={right!r}, or fit anew."
            )
    estimator = dense(estimator)
    design = read_design(estimator, data, options)
    kind = Classification(
        design=design,
        labels=read_labels(estimator, data, options),
        weights=read_weights(data),
        penalty=_penalty(estimator),
        loss=SquaredHinge(),
        softmax=False,
        class_weight=estimator.class_weight,
    )
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, "start"))


@way_for(LinearSVR)
def keep_linear_svr(estimator: Any, data: Data, options: Options) -> Kept:
    """C Σ max(0, |z - t| - ε)² + ½ ‖coef‖², with the intercept penalised as a column."""
    if estimator.loss != "squared_epsilon_insensitive" or estimator.epsilon < 0:
        raise NotYetSupportedError(
            f"estimator: LinearSVR with loss={estimator.loss!r} and epsilon={estimator.epsilon!r} has corners, at "
            "which its minimum lies and no Newton step leads to; use loss='squared_epsilon_insensitive' and an epsilon "
            "of 0 or more, or fit anew."
        )
    design = read_design(estimator, data, options)
    kind = Regression(
        design=design,
        targets=read_numbers(data),
        weights=read_weights(data),
        loss=SquaredInsensitive(float(estimator.epsilon)),
        penalty=_penalty(estimator),
    )
    rule = "start" if estimator.dual is False else "change"  # the dual's rule says little about the gradient
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, rule))


def _penalty(estimator: Any) -> Penalty:
    return Penalty(1 / estimator.C, intercept=1 / estimator.intercept_scaling**2)
