"""Work that several processes share: each piece is done by one of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def claim(file: Path) -> Iterator[bool]:
    """Whether this process may make the file, which no other is making now; one that dies gives its claim back.

    Where the system or the folder has no such locks it is always True: then two processes may make the same file, which
    costs time and harms nothing, since files are written whole.
    """
    if fcntl is None:
        yield True
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.with_name(f".{file.name}.lock")
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        mine = _is_locked_now(lock, descriptor)
        try:
            yield mine
        finally:
            if mine:
                with contextlib.suppress(OSError):
                    lock.unlink()
    finally:
        os.close(descriptor)  # which gives the claim back


def _is_locked_now(lock: Path, descriptor: int) -> bool:
    """Lock it, unless another has; one that was taken away between opening and locking is nobody's."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
