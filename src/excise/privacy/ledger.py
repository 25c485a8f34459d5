"""A budget in a file, which several processes may spend from."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from excise._support.files import naming, write_json
from excise.errors import InputError

PATIENCE = 60.0  # seconds to wait for another process, which holds the lock for milliseconds
STALE = 30.0  # seconds after which a lock is left over from a process that was killed
_PAUSE = 0.01

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with the file, among all processes; a process that dies gives the lock back."""
    lock = path.with_name(f".{path.name}.lock")
    with naming(lock):
        held = _by_kernel(lock) if fcntl is not None else _by_name(lock)
        with held:
            yield


@contextlib.contextmanager
def _by_kernel(lock: Path) -> Iterator[None]:
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _wait(lock, end)
        yield
    finally:
        os.close(descriptor)  # which unlocks


@contextlib.contextmanager
def _by_name(lock: Path) -> Iterator[None]:
    """Where there are no locks: a file that only one process can make."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except (FileExistsError, PermissionError):
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > STALE:
                    lock.rename(lock.with_name(f"{lock.name}.{os.getpid()}"))  # which one process alone can
                    lock.with_name(f"{lock.name}.{os.getpid()}").unlink()
            _wait(lock, end)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()


def _wait(lock: Path, end: float) -> None:
    if time.monotonic() > end:
        raise InputError(f"{lock}: another process has held the budget for {PATIENCE:g} s; is it stuck? End it.")
    time.sleep(_PAUSE)


def read_budget(path: Path) -> Any:
    """What a budget's file says."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: the budget could not be read ({error.strerror or error}).") from None
    except ValueError:
        raise InputError(f"{path}: holds no budget, or is damaged; was it saved by excise?") from None


def write_budget(path: Path, state: dict[str, Any]) -> None:
    """Write a budget's file, whole or not at all."""
    write_json(path, state)
