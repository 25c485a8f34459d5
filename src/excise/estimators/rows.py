"""Which rows a request names."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.errors import InputError
from excise.estimators.kept import Rows

SHOWN = 5  # of the rows that are wrong


def read_rows(rows: Any, length: int, gone: Rows) -> Rows:
    """Positions in X, sorted; each must be there, once, and not be gone already.

    >>> read_rows([4, 1], 5, np.array([2])).tolist(), read_rows([True, False, True], 3, np.array([], int)).tolist()
    ([1, 4], [0, 2])
    """
    found = np.atleast_1d(np.asarray(rows))
    if found.size == 0:
        raise InputError(f"rows must name at least one row of X, but got {rows!r}.")
    if found.ndim != 1 or found.dtype.kind not in "biu":
        raise InputError(
            f"rows must be positions in X, counted from 0, or a mask of booleans, not {found.dtype} of shape "
            f"{found.shape}."
        )
    if found.dtype.kind == "b":
        found = _from_mask(found, length)
    outside = found[(found < 0) | (found >= length)]
    _refuse(outside, f"are not rows of X; count them from 0 to {length - 1}, also from the end")
    once, times = np.unique(found, return_counts=True)
    _refuse(once[times > 1], "are named more than once; name each once")
    once = once.astype(np.intp)
    _refuse(np.intersect1d(once, gone), "are gone already, by an earlier request; name others")
    if len(once) + len(gone) == length:
        raise InputError(f"rows: no row would be left of the {length} of X; to forget all, delete the estimator.")
    return once


def _from_mask(mask: Any, length: int) -> Rows:
    if len(mask) != length:
        raise InputError(f"rows: a mask must be as long as X, which has {length} rows, but it has {len(mask)}.")
    if not mask.any():
        raise InputError("rows: the mask is False everywhere; set it True for the rows that shall go.")
    return np.flatnonzero(mask)


def _refuse(wrong: Any, why: str) -> None:
    if len(wrong):
        shown = ", ".join(map(str, wrong[:SHOWN].tolist())) + (", …" if len(wrong) > SHOWN else "")
        raise InputError(f"rows: {shown} {why}.")
