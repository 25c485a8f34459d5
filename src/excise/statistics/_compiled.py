"""Compile a function once for all processes, where the disk allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class OptionalCache(FunctionCache):
    """Numba's cache on disk. A full or read-only disk costs the next process its compiling, not this one its result."""

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function, if it can be kept."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function of arrays, without Python's lock, and keep what was compiled."""
    dispatcher: Any = njit(nogil=True, error_model="numpy")(function)
    with contextlib.suppress(RuntimeError):  # numba found no folder that it may write to
        dispatcher._cache = OptionalCache(function)  # type: ignore[no-untyped-call]
    return dispatcher
