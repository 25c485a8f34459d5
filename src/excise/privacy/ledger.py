"""A budget in a file, which several processes may spend from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from excise._support.files import naming, write_json
from excise._support.locks import alone
from excise.errors import InputError

PATIENCE = 60.0  # seconds to wait for another process, which holds the lock for milliseconds


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with the file, among all processes; a process that dies gives the lock back."""
    with naming(path), alone(path, patience=PATIENCE) as mine:
        if not mine:
            raise InputError(f"{path}: another process has held the budget for {PATIENCE:g} s; is it stuck? End it.")
        yield


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
