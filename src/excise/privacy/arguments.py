"""Checks of the numbers that a guarantee rests on; their errors say what each number is."""

from __future__ import annotations

import math
from typing import Any

from excise._support import checks

_MEANING = {
    "delta": "it is a probability, usually far below 1 / (number of samples)",
    "distance": "it is the Euclidean distance of the two models' weights",
    "epsilon": "1 is usual, and smaller hides more",
    "gradient_norm": "if it is NaN or infinite, so is the model's loss",
    "hessian_lipschitz": "it is M, and 0 for a quadratic loss",
    "lipschitz": "it is L, a bound on the norm of every sample's gradient",
    "removed": "it is how many samples are removed",
    "rounding": "it is by how much the norm can be larger than computed",
    "samples": "it is the size of the training set",
    "sigma": "it is the standard deviation of the noise",
    "strong_convexity": "it is λ, the weight decay for a convex loss",
    "weight_decay": "it is λ of the training",
}


def number(value: Any, name: str, *, positive: bool = False, below: float = math.inf) -> float:
    """A finite number, positive or at least not negative."""
    return checks.number(value, name, positive=positive, below=below, meaning=_MEANING[name])


def count(value: Any, name: str) -> int:
    """A positive whole number."""
    return checks.whole(value, name, meaning=_MEANING[name])
