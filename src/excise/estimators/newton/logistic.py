"""``LogisticRegression``: two classes, or a softmax of more."""

from __future__ import annotations

import math
from typing import Any

from sklearn.linear_model import LogisticRegression

from excise.errors import NotYetSupportedError
from excise.estimators.kept import Data, Kept, Options, way_for
from excise.estimators.newton.keeping import keep_minimum
from excise.estimators.newton.kinds import Classification, Penalty
from excise.estimators.newton.losses import LogLoss
from excise.estimators.newton.reading import dense, read_design, read_labels, read_weights
from excise.estimators.newton.stopping import Stopping

RULES = {"liblinear": "start", "sag": "change", "saga": "change"}
"""What solvers stop by; the others by the gradient of the mean."""


@way_for(LogisticRegression)
def keep_logistic(estimator: Any, data: Data, options: Options) -> Kept:
    """C Σ loss + ½ ‖coef‖²; liblinear alone penalises the intercept, as the weight of a constant column."""
    strength = _strength(estimator)
    estimator = dense(estimator)
    design = read_design(estimator, data, options)
    shared = 1 / estimator.intercept_scaling**2 if estimator.solver == "liblinear" else 0.0
    kind = Classification(
        design=design,
        labels=read_labels(estimator, data, options),
        weights=read_weights(data),
        penalty=Penalty(strength, intercept=shared),
        loss=LogLoss(),
        softmax=True,
        class_weight=estimator.class_weight,
    )
    rule = RULES.get(estimator.solver, "mean")
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, rule))


def _strength(estimator: Any) -> float:
    """1 / C, or 0 without a penalty; an L1 penalty is refused."""
    penalty = getattr(estimator, "penalty", "deprecated")
    if penalty is None:
        return 0.0
    ratio = estimator.l1_ratio or 0.0
    if penalty in ("l1", "elasticnet") or (penalty == "deprecated" and ratio > 0 and math.inf > estimator.C):
        raise NotYetSupportedError(
            f"estimator: LogisticRegression with an L1 penalty (penalty={penalty!r}, l1_ratio={estimator.l1_ratio!r}) "
            "has a corner where a coefficient is 0, which no Newton step leads to; use l1_ratio=0, or fit anew."
        )
    return 1 / float(estimator.C)
