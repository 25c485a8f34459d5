"""Margins of populations of models: what all the measures in this folder take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise._support.checks import finite
from excise.errors import InputError

Floats = NDArray[np.float64]


def require_models(unlearned: Any, retrained: Any, *, fewest: int = 2) -> tuple[Floats, Floats]:
    """Both as arrays, models × samples, of the same samples and of enough models each."""
    ours, theirs = finite(unlearned, "unlearned", 2), finite(retrained, "retrained", 2)
    for name, margins in (("unlearned", ours), ("retrained", theirs)):
        if len(margins) < fewest:
            raise InputError(f"{name} has {len(margins)} models (rows); this measure needs {fewest} or more.")
    if ours.shape[1] != theirs.shape[1] or not ours.shape[1]:
        raise InputError(
            f"unlearned has {ours.shape[1]} samples (columns) and retrained {theirs.shape[1]}; pass models × samples, "
            "with the same samples in the same order."
        )
    return ours, theirs
