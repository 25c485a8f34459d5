"""Estimators that no rows can be taken out of: why, and what to do instead."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from excise.errors import InputError, NeverSupportedError, NotYetSupportedError
from excise.estimators.kept import find_way, known_types
from excise.estimators.repeatable import check_repeatable

RETRAIN = "fit it anew on the other rows"
REASONS = {  # module: why not, what instead
    "sklearn.tree": ("a single row can change every split below the one that it decides", RETRAIN),
    "sklearn.ensemble": ("its members are drawn from, or built upon, all rows", RETRAIN),
    "xgboost": ("each tree is built upon all before it", RETRAIN),
    "lightgbm": ("each tree is built upon all before it", RETRAIN),
    "catboost": ("each tree is built upon all before it", RETRAIN),
    "sklearn.neural_network": (
        "its objective has many minima",
        f"{RETRAIN}, or build the network in torch and pass it to excise.Unlearner",
    ),
    "sklearn.model_selection": (
        "its parameters were chosen with the rows in sight",
        "search anew on the other rows; its best_estimator_ can be unfitted, if that choice may stay",
    ),
}


def check_estimator(estimator: Any) -> None:
    """Refuse what has no way, says too little about its data, or was fitted with other random numbers each time."""
    if not isinstance(estimator, BaseEstimator):
        what = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        raise InputError(f"estimator must be a fitted scikit-learn estimator, not {what}.")
    if find_way(estimator) is None:
        _refuse(type(estimator))
    if get_tags(estimator).input_tags.pairwise:
        raise NotYetSupportedError(
            f"estimator: {type(estimator).__name__} was fitted on a precomputed matrix, whose columns are rows too; "
            "fit it on the rows themselves, by a named kernel or metric."
        )
    if getattr(estimator, "positive", False):
        raise NeverSupportedError(
            f"estimator: {type(estimator).__name__}(positive=True) has no closed form, since bounds may bind "
            f"otherwise without the rows; {RETRAIN}, or use positive=False."
        )
    check_repeatable(estimator)


def _refuse(kind: type) -> None:
    for module, (why, instead) in REASONS.items():
        if kind.__module__.split(".")[: module.count(".") + 1] == module.split("."):
            raise NeverSupportedError(f"estimator: rows can't be taken out of {kind.__name__}: {why}; {instead}.")
    known = known_types()
    parents = [parent.__name__ for parent in kind.__mro__[1:] if parent.__name__ in known]
    which = f" is a subclass of {parents[0]}, and may fit in another way;" if parents else " is not known;"
    raise NotYetSupportedError(
        f"estimator: {kind.__name__}{which} fit it anew on the other rows, or use one of {', '.join(known)}."
    )
