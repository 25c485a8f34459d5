"""Work that several processes share: each piece is done by one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from excise._support.locks import NoLocks, alone


@contextlib.contextmanager
def claim(file: Path) -> Iterator[bool]:
    """Whether this process may make the file, which no other is making now; one that dies gives its claim back.

    Where the folder has no locks it is always True: then two processes may make the same file, which costs time and
    harms nothing, since files are written whole.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            mine = stack.enter_context(alone(file))
        except NoLocks:
            mine = True
        yield mine
