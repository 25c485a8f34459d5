"""Alone with a file, among all processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STALE = 30.0  # seconds after which a lock by name is left over from a process that was killed
_PAUSE = 0.01
Release = Callable[[], None]


class NoLocks(OSError):
    """The file system has no locks."""


@contextlib.contextmanager
def alone(file: Path, *, patience: float = 0.0) -> Iterator[bool]:
    """Whether no other process is with the file, after waiting for it up to ``patience`` seconds.

    A process that dies gives the file back.
    """
    lock, end = file.with_name(f".{file.name}.lock"), time.monotonic() + patience
    take = _by_name if fcntl is None else _by_kernel
    while (release := take(lock)) is None and time.monotonic() < end:
        time.sleep(_PAUSE)
    try:
        yield release is not None
    finally:
        if release is not None:
            release()


def _by_kernel(lock: Path) -> Release | None:
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)

    def release() -> None:
        with contextlib.suppress(OSError):
            lock.unlink()  # before it is unlocked: then it may be another's
        os.close(descriptor)

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(lock.stat(), os.fstat(descriptor)):
            return release
    except (BlockingIOError, FileNotFoundError):  # another has it, or took it away between opening and locking
        pass
    except OSError as error:
        release()
        raise NoLocks(error.errno, error.strerror) from error
    os.close(descriptor)
    return None


def _by_name(lock: Path) -> Release | None:
    """Where the system has no locks: a file that only one process can make."""
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except (FileExistsError, PermissionError):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > STALE:
                left_over = lock.with_name(f"{lock.name}.{os.getpid()}")
                lock.rename(left_over)  # which one process alone can
                left_over.unlink()
        return None

    def release() -> None:
        with contextlib.suppress(OSError):
            lock.unlink()

    return release
