"""Whether ``fit`` gives the same twice: without that, nobody can tell what it would have given on other rows."""

from __future__ import annotations

from typing import Any

from excise.errors import InputError

DRAWING = {  # of a type: the parameter that chooses, values with which fit draws random numbers
    "PCA": ("_fit_svd_solver", ("randomized", "arpack")),
    "TruncatedSVD": ("algorithm", ("randomized", "arpack")),
    "Ridge": ("solver", ("sag", "saga")),
    "RidgeClassifier": ("solver", ("sag", "saga")),
}


def check_repeatable(estimator: Any) -> None:
    """Refuse an estimator whose ``fit`` draws random numbers that are others each time."""
    if getattr(estimator, "random_state", 0) is not None:
        return
    name = type(estimator).__name__
    parameter, values = DRAWING.get(name, ("", ()))
    drawing = f"by {getattr(estimator, parameter)!r}" if getattr(estimator, parameter, None) in values else ""
    if getattr(estimator, "n_restarts_optimizer", 0) > 0:
        drawing = "with n_restarts_optimizer > 0"
    if drawing:
        raise InputError(
            f"estimator: {name} was fitted {drawing} and random_state=None, so that no fit gives the same twice; give "
            "it a random_state, or a solver that does not draw, and fit it first."
        )
