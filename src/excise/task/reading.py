"""Reading samples by their positions: several at once where a set can do that, ahead by other processes if asked to.

A set may be far larger than memory, such as a file that is mapped into it. Pages of such a file that were read count as
memory of the process until the system needs them elsewhere; they are given back as reading goes on.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from excise._support.memory import resident
from excise.errors import InputError

Collate = Callable[[list[Any]], Any]
GIVEN_BACK = 2**28  # bytes by which a process may grow before pages of mapped files are given back
LOOKS = 16  # batches, after which it is seen how large it has become
FEWEST_BATCHES = 16  # that are worth the start of processes which read ahead


class _Size:
    """How large the process was when pages were last given back, and how many batches were read since a look at it."""

    before = 0
    batches = 0


def read(data: Any, ids: Sequence[int] | Tensor, collate: Collate) -> Any:
    """The samples at these positions as one batch."""
    if isinstance(data, TensorDataset):
        return data[torch.as_tensor(ids, dtype=torch.long)]
    if type(data) is Subset and isinstance(data.dataset, TensorDataset):  # which it would ask for one by one
        return data.dataset[torch.tensor([data.indices[int(place)] for place in ids], dtype=torch.long)]
    batch = collate(samples_at(data, ids))
    _Size.batches += 1
    if _Size.batches % LOOKS == 0 and resident() > _Size.before + GIVEN_BACK:
        give_back(data)
        _Size.before = resident()
    return batch


def samples_at(data: Any, ids: Sequence[int] | Tensor) -> Any:
    """A list of the samples: one by one or, as torch's ``DataLoader`` does it, by ``__getitems__``.

    What that method gives goes to ``collate``; if it is no list, it is for ``collate`` alone to know what it is, such
    as a whole batch that was cut from a table.
    """
    places = ids.tolist() if isinstance(ids, Tensor) else [int(one) for one in ids]
    at_once = getattr(data, "__getitems__", None)
    if not callable(at_once):
        return [data[place] for place in places]
    found = at_once(places)
    if isinstance(found, list) and len(found) != len(places):
        raise InputError(
            f"train_set gives {len(found)} samples for {len(places)} positions; its __getitems__ must give a list of "
            "samples, one for each, or leave that method out."
        )
    return found


def part(data: Any, ids: Tensor, *, keep: bool) -> Any:
    """Some samples as a set: read now, if they are to be kept and the set does not give several as a whole."""
    if keep and isinstance(data, TensorDataset):
        return TensorDataset(*data[ids])
    found = samples_at(data, ids) if keep else None
    return found if isinstance(found, list) else Subset(data, ids.tolist())


def give_back(data: Any) -> None:
    """Let the system take back what was read of files that the set has mapped; the next reading maps it again."""
    while isinstance(data, Subset):
        data = data.dataset
    for value in getattr(data, "__dict__", {}).values():
        if not isinstance(value, np.memmap) or value.mode not in ("r", "r+"):  # of others, changes would be lost
            continue
        root = value
        while isinstance(root.base, np.memmap):
            root = root.base
        if isinstance(root.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                root.base.madvise(mmap.MADV_DONTNEED)


class _Positions(torch.utils.data.Dataset[Any]):
    """A set whose samples are batches: what a process that reads ahead is given."""

    def __init__(self, data: Any, collate: Collate) -> None:
        self._data, self._collate = data, collate

    def __getitem__(self, ids: list[int]) -> Any:
        return read(self._data, ids, self._collate)


def ahead(
    data: Any, batches: Sequence[Tensor], collate: Collate, workers: int, seed: int = 0
) -> Generator[Any, None, None]:
    """The batches in their order, read ahead by so many processes."""
    loader = DataLoader(
        _Positions(data, collate),
        sampler=[ids.tolist() for ids in batches],  # one "position" is a list of them
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        generator=torch.Generator().manual_seed(seed),
    )
    yield from loader


def _as_it_is(batch: Any) -> Any:
    return batch


def helpful_workers(workers: int, batches: int) -> int:
    """How many processes are to read ahead: none where there is little to read, or where none can be started."""
    if batches < FEWEST_BATCHES or multiprocessing.current_process().daemon:
        return 0
    return workers


class _Ahead(threading.local):
    """What is being read ahead for a thread, the last that was begun first."""

    now: tuple[_Next, ...] = ()


_AHEAD = _Ahead()


class _Next:
    """Batches that will be asked for one after the other."""

    def __init__(self, data: Any, asked: Sequence[Tensor], batches: Iterator[Any]) -> None:
        self._data, self._asked, self._batches, self._count = data, asked, batches, 0

    def is_it(self, data: Any, ids: Sequence[int] | Tensor) -> bool:
        """Whether this is the next one."""
        if data is not self._data or not isinstance(ids, Tensor) or self._count == len(self._asked):
            return False
        return torch.equal(ids, self._asked[self._count])

    def take(self) -> Any:
        """The next one."""
        self._count += 1
        return next(self._batches)


@contextlib.contextmanager
def reading_ahead(data: Any, asked: Sequence[Tensor], collate: Collate, workers: int, seed: int) -> Iterator[None]:
    """Batches that this thread asks for inside in this order are read ahead; any other one is read when it is asked."""
    workers = helpful_workers(workers, len(asked))
    if not workers:
        yield
        return
    with contextlib.closing(ahead(data, asked, collate, workers, seed)) as batches:
        mine = _Next(data, asked, batches)
        _AHEAD.now = (mine, *_AHEAD.now)
        try:
            yield
        finally:
            _AHEAD.now = tuple(one for one in _AHEAD.now if one is not mine)


def read_before(data: Any, ids: Sequence[int] | Tensor) -> Any | None:
    """A batch that was read ahead; None for another one."""
    for one in _AHEAD.now:
        if one.is_it(data, ids):
            return one.take()
    return None


def refuse_streams(data: Any, name: str) -> None:
    """Refuse a set that can only be gone through from its beginning, where no sample can be named."""
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InputError(
            f"{name} is a {type(data).__name__}, and must be indexable and have a length, so that samples can be named "
            "by position; a stream such as WebDataset's is so with an index (wids.ShardListDataset), one of Hugging "
            "Face's without streaming=True."
        )
