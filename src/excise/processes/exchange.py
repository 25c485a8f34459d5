"""What processes tell each other: sums, rows and objects, each after a word from all that they are well, and where.

The word is what lets an error of one end all the others: it is given at the place where these wait for the next thing.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from excise.errors import ExciseError, ProcessError
from excise.processes.group import Group, alone, lost, sharing
from excise.processes.shares import assigned

T = TypeVar("T")
R = TypeVar("R")
WELL, FAILED = 0, 1
BUCKET = 4_000_000  # values that are sent at once; a larger tensor is sent by itself
HEARING = 10.0  # seconds that a process tries to tell others of an error while they may be inside a model
MOST_SAID = 2000  # characters of an error that others hear


def confirm(place: str) -> None:
    """Go on where all processes are well and at this place; else the same error on all."""
    group = sharing()
    if group is None:
        return
    said = _say(group, WELL, place)
    if any(word[0] != WELL for word in said):
        _stop(group, _messages(group, ""))
    if len({word[1] for word in said}) > 1:
        places = _messages(group, place)
        raise ProcessError(
            f"process {group.rank} is at {place!r}, and not all others are ({'; '.join(sorted(set(places)))}): they "
            "have different data or options, or compute on different hardware. Nothing was applied or written."
        )


def tell(error: Exception) -> None:
    """Tell the others of an error here, where they wait for a word; those that can't be reached know already."""
    group = sharing()
    if group is None or group.broken:
        return
    words = f"{error if isinstance(error, ExciseError) else repr(error)}"[:MOST_SAID]
    if group.is_in_step:  # others may wait in the model, where no word reaches them; they stop when this process ends
        asking = threading.Thread(target=_tell, args=(group, words), daemon=True)
        asking.start()
        asking.join(HEARING)
        if asking.is_alive():
            group.broken = "an error of this process could not be told to the others"
        return
    _tell(group, words)


def _tell(group: Group, words: str) -> None:
    with contextlib.suppress(ProcessError):
        _say(group, FAILED, "")
        _messages(group, words)


def _say(group: Group, status: int, place: str) -> list[list[int]]:
    """Status and place of every process."""
    word = torch.tensor([status, zlib.crc32(place.encode())], dtype=torch.int64)
    return [one.tolist() for one in _sent(group, partial(group.lines.words, word))]


def _messages(group: Group, own: str) -> list[str]:
    """A text of each process."""
    return [str(one) for one in _objects(group, own)]


def _objects(group: Group, own: Any) -> list[Any]:
    return _sent(group, partial(group.lines.objects, own))


def _stop(group: Group, messages: Sequence[str]) -> None:
    told = "; ".join(f"process {number}: {text}" for number, text in enumerate(messages) if text)
    raise ProcessError(
        f"process {group.rank} stopped because another one failed, and nothing was applied or written. {told}"
    )


def total(tensors: Sequence[Tensor], place: str, *, double: bool = True) -> list[Tensor]:
    """The sum over the processes of each tensor, the same on all; added up in double precision, unless told not to."""
    group = sharing()
    if group is None:
        return list(tensors)
    confirm(f"{place}, {sum(one.numel() for one in tensors)} values")
    found: list[Tensor] = []
    for some in _buckets(tensors):
        flat = torch.cat([one.detach().reshape(-1) for one in some])
        flat = flat.double() if double and flat.is_floating_point() else flat
        _sent(group, partial(group.lines.add, flat))
        pieces = flat.split([one.numel() for one in some])
        found += [piece.reshape(one.shape).to(one.dtype) for piece, one in zip(pieces, some, strict=True)]
    return found


def gathered(own: T, place: str) -> list[T]:
    """Small things of all processes, such as names and numbers, in the order of their ranks."""
    group = sharing()
    if group is None:
        return [own]
    confirm(place)
    return _objects(group, own)


def gathered_rows(parts: Sequence[Tensor], place: str) -> list[Tensor]:
    """Tensors whose first axis goes on from process to process, whole on all; shapes may differ in that axis alone."""
    group = sharing()
    if group is None:
        return list(parts)
    lengths = gathered([len(one) for one in parts], f"{place}, {len(parts)} tensors")
    found = []
    for number, own in enumerate(parts):
        mine = own.detach().contiguous()
        pieces = [
            mine if at == group.rank else mine.new_empty((of_rank[number], *mine.shape[1:]))
            for at, of_rank in enumerate(lengths)
        ]
        for at, piece in enumerate(pieces):
            if piece.numel():
                _sent(group, partial(group.lines.spread, piece, at))
        found.append(torch.cat(pieces))
    return found


def from_first(tensors: Sequence[Tensor], place: str, *, first: int = 0) -> None:
    """Set tensors to what they are in the first process, or in another, in place."""
    group = sharing()
    if group is None:
        return
    confirm(place)
    with torch.no_grad():
        for some in _buckets(tensors):
            flat = torch.cat([one.detach().reshape(-1) for one in some])
            _sent(group, partial(group.lines.spread, flat, first))
            for piece, one in zip(flat.split([one.numel() for one in some]), some, strict=True):
                one.copy_(piece.reshape(one.shape))


def any_of(here: bool, place: str) -> bool:
    """Whether it is so in any of the processes."""
    return any(gathered(here, place))


def agree(facts: Mapping[str, str], place: str) -> None:
    """Refuse to go on where the processes differ in what they were given; each names what differs."""
    group = sharing()
    if group is None:
        return
    told = gathered(dict(facts), place)
    first = told[0]
    for number, other in enumerate(told):
        wrong = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if wrong:
            raise ProcessError(
                f"process {number} has another {' and another '.join(wrong)} than process 0: all processes must have "
                "the same model, data and options, and the same versions of the packages. Nothing was done."
            )


def each(items: Sequence[T], work: Callable[[T], R], place: str, *, costs: Sequence[float] | None = None) -> list[R]:
    """What work makes of each item, in their order, on every process; each process does some of them, by itself.

    >>> each([1, 2, 3], lambda number: number**2, "squares")
    [1, 4, 9]
    """
    group = sharing()
    if group is None:
        return [work(item) for item in items]
    mine = assigned(costs or [1.0] * len(items), group.size)[group.rank]
    with alone():
        made = {number: work(items[number]) for number in mine}
    found: dict[int, R] = {}
    for some in gathered(made, f"{place}, {len(items)} pieces"):
        found |= some
    return [found[number] for number in range(len(items))]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that follow each other, of one kind and on one device, to be sent together."""
    some: list[Tensor] = []
    length = 0
    for one in tensors:
        is_other = bool(some) and (one.dtype, one.device) != (some[0].dtype, some[0].device)
        if some and (is_other or length + one.numel() > BUCKET):
            yield some
            some, length = [], 0
        some.append(one)
        length += one.numel()
    if some:
        yield some


def _sent(group: Group, send: Callable[[], R]) -> R:
    try:
        return send()
    except RuntimeError as error:
        raise lost(group, error) from error
