"""How long a piece of work takes, how much memory it needs meanwhile, and how much of it is kept."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from excise._support.memory import resident

Clock = Callable[[], float]
SHORT = 0.5  # seconds, below which a piece of work is repeated: the first time is often longer
REPEATS = 2
LOOK = 0.005  # seconds between two looks at the memory, where the system does not tell the most
_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Taken:
    """What a piece of work took."""

    seconds: float
    memory: float
    """Bytes beyond those before, at most."""


def taken(work: Callable[[], Any], clock: Clock = time.perf_counter) -> Taken:
    """What the work takes; the shortest of a few times where it is short."""
    found = [once(work, clock)]
    while found[-1].seconds < SHORT and len(found) <= REPEATS:
        found.append(once(work, clock))
    return Taken(min(one.seconds for one in found), max(one.memory for one in found))


def once(work: Callable[[], Any], clock: Clock) -> Taken:
    """What a work takes that can't be repeated."""
    with most_memory() as most:
        began = clock()
        work()
        seconds = clock() - began
    return Taken(seconds, most[0])


@contextmanager
def most_memory() -> Iterator[list[float]]:
    """A list whose one number is, afterwards, by how many bytes the process was larger than before, at most."""
    _release()
    most, before = [0.0], resident()
    if _can_reset():
        yield most
        most[0] = max(0.0, _peak() - before)
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK):
            most[0] = max(most[0], resident() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def _release() -> None:
    """Give memory that is free back to the system: else what is taken again would not be seen."""
    gc.collect(1)  # what was made lately; all of it would take longer than many works
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _can_reset() -> bool:
    """Whether the system forgets how large the process was, so that it tells how large it is from now on."""
    try:
        _RESET.write_text("5")
        return _peak() - resident() < 2**24
    except (OSError, ValueError):
        return False


def _peak() -> int:
    return int(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024


def bytes_kept(thing: Any) -> int:
    """Bytes of all tensors that a thing holds, each once.

    >>> import torch
    >>> numbers = torch.zeros(10)
    >>> bytes_kept({"a": numbers, "b": [numbers, torch.zeros(2, dtype=torch.double)]})
    56
    """
    sizes: dict[int, int] = {}
    _collect(thing, sizes, set())
    return sum(sizes.values())


def _collect(thing: Any, sizes: dict[int, int], seen: set[int]) -> None:
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type(None)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return
    for part in _parts(thing):
        _collect(part, sizes, seen)


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, Mapping):
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        # what a task holds is the user's, and was there before
        return [part for name, part in vars(thing).items() if name not in ("task", "model")]
    closure = getattr(thing, "__closure__", None) or ()
    return [cell.cell_contents for cell in closure]
