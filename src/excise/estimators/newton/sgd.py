"""``SGDClassifier`` and ``SGDRegressor`` with smooth losses, at the minimum of what they descend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.utils.class_weight import compute_class_weight

from excise.errors import NotYetSupportedError
from excise.estimators.kept import Data, Floats, Kept, Options, way_for
from excise.estimators.newton.keeping import keep_minimum
from excise.estimators.newton.kinds import Classification, Penalty, Problem, Regression
from excise.estimators.newton.losses import (
    Huber,
    LogLoss,
    Loss,
    ModifiedHuber,
    SquaredError,
    SquaredHinge,
    SquaredInsensitive,
)
from excise.estimators.newton.reading import dense, read_design, read_labels, read_numbers, read_weights
from excise.estimators.newton.stopping import Stopping


@dataclass(frozen=True)
class DescentClassification(Classification):
    """A classifier by gradient descent: one class against the rest, and the attributes that descent leaves."""

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:
        """The same weights for the average of them, and for the last of them."""
        super().write(estimator, problem, found)
        assert problem.classes is not None
        labels = self.labels[problem.left]
        estimator._expanded_class_weight = compute_class_weight(self.class_weight, classes=problem.classes, y=labels)
        _rest(estimator, problem)


@dataclass(frozen=True)
class DescentRegression(Regression):
    """A regressor by gradient descent, and the attributes that descent leaves."""

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:
        """The same weights for the average of them, and for the last of them."""
        super().write(estimator, problem, found)
        _rest(estimator, problem)


def _rest(estimator: Any, problem: Problem) -> None:
    estimator.t_ = 1.0 + estimator.n_iter_ * int(problem.left.sum())
    if estimator.average:
        for name in ("coef", "intercept"):
            for which in ("_standard_", "_average_"):
                setattr(estimator, which + name, getattr(estimator, name + "_").copy())


@way_for(SGDClassifier)
def keep_sgd_classifier(estimator: Any, data: Data, options: Options) -> Kept:
    """Mean loss over rows + ½ alpha ‖coef‖², for each class."""
    loss = _loss(estimator)
    estimator = dense(estimator)
    design = read_design(estimator, data, options)
    kind = DescentClassification(
        design=design,
        labels=read_labels(estimator, data, options),
        weights=read_weights(data),
        penalty=_penalty(estimator),
        loss=loss,
        softmax=False,
        class_weight=estimator.class_weight,
        weighted_balance=False,
    )
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, "none"))


@way_for(SGDRegressor)
def keep_sgd_regressor(estimator: Any, data: Data, options: Options) -> Kept:
    """Mean loss over rows + ½ alpha ‖coef‖²."""
    loss = _loss(estimator)
    estimator = dense(estimator)
    design = read_design(estimator, data, options)
    kind = DescentRegression(
        design=design,
        targets=read_numbers(data),
        weights=read_weights(data),
        loss=loss,
        penalty=_penalty(estimator),
    )
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, "none"))


def _loss(estimator: Any) -> Loss:
    """The loss, if it has a slope everywhere."""
    epsilon = float(estimator.epsilon)
    losses: dict[str, Loss] = {
        "log_loss": LogLoss(),
        "squared_error": SquaredError(),
        "squared_hinge": SquaredHinge(),
        "modified_huber": ModifiedHuber(),
        "huber": Huber(epsilon),
        "squared_epsilon_insensitive": SquaredInsensitive(epsilon),
    }
    name = type(estimator).__name__
    if estimator.loss not in losses:
        raise NotYetSupportedError(
            f"estimator: {name} with loss={estimator.loss!r} has an objective with corners, at which its minimum lies "
            f"and no Newton step leads to; use one of {', '.join(losses)}, or fit anew."
        )
    if estimator.early_stopping:
        raise NotYetSupportedError(
            f"estimator: {name} with early_stopping=True learns from a part of the rows that is drawn at random, which "
            "changes when a row is gone; use early_stopping=False, or fit anew."
        )
    return losses[estimator.loss]


def _penalty(estimator: Any) -> Penalty:
    penalty = str(estimator.penalty).lower()
    if penalty in ("l1", "elasticnet"):
        raise NotYetSupportedError(
            f"estimator: {type(estimator).__name__} with penalty={estimator.penalty!r} has a corner where a "
            "coefficient is 0, which no Newton step leads to; use penalty='l2', or fit anew."
        )
    return Penalty(0.0 if penalty == "none" else float(estimator.alpha), per="row")
