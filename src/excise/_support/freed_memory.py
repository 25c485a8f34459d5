"""Memory that was freed, kept for what is made next.

Dask has its workers give freed memory back to the system at once (``MALLOC_TRIM_THRESHOLD_``). A training frees and
asks for the same amounts thousands of times a second, and spends a third of its time on that.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h of glibc
KEPT = 2**27  # bytes of free memory that the process keeps
LARGEST = 2**25  # bytes, above which memory is asked of the system each time; the most that glibc takes


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Where the environment says that freed memory is given back at once, it is given back at the end instead.

    >>> with keeping_freed_memory():
    ...     sum([1, 2])
    3
    """
    before = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    library = _allocator() if before.isdigit() and int(before) < KEPT else None
    if library is None:
        yield
        return
    library.mallopt(TRIM_THRESHOLD, KEPT)
    library.mallopt(MMAP_THRESHOLD, LARGEST)
    try:
        yield
    finally:
        library.mallopt(TRIM_THRESHOLD, int(before))
        library.malloc_trim(0)


def _allocator() -> ctypes.CDLL | None:
    """That of glibc; others know nothing of the setting."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if library.mallopt and library.malloc_trim:
            return library
    return None
