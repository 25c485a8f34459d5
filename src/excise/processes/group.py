"""Which processes work together, and where: inside calls that all of them make.

A call such as ``Unlearner.forget`` is a section: it begins where all processes have come to it, and in it work is
shared. It ends with a word from each that all is well. Whoever fails says so instead, at the place where the others
wait for its word next, so that these stop too and say why (see ``exchange``).
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist

from excise._support.launchers import started_processes
from excise.errors import InputError, ProcessError, warn
from excise.processes.lines import GroupLines, Lines

PATIENCE = 30.0  # seconds of waiting for others, after which that is said
MEETING = timedelta(minutes=10)  # for all to come to the same call
WORKING = timedelta(days=1)  # that one may work while others wait; they notice at once when it ends


class WaitingWarning(UserWarning):
    """A process waits for others that have not come to the same call yet."""


@dataclass(eq=False)
class Group:
    """All processes of ``torch.distributed``, with lines of their own between them."""

    rank: int
    size: int
    lines: Lines
    broken: str = ""
    """Why it can't be used any more."""
    is_in_step: bool = False
    """Whether others may wait inside the model, rather than for a word."""


@dataclass(frozen=True, eq=False)
class InStep:
    """All processes do the same on the same samples, as a model that is sharded over them asks for."""

    group: Group


Alone = Literal["alone"]
_NOW: ContextVar[Group | InStep | Alone | None] = ContextVar("processes", default=None)
_PLAYED: ContextVar[Group | None] = ContextVar("played", default=None)
"""A group of processes that this one only plays (see ``rehearsal``)."""
_LAST: list[tuple[Any, Group]] = []
"""The user's group that was seen last, and what was made of it."""
atexit.register(_LAST.clear)  # lines that are taken down after Python itself abort the process


def sharing() -> Group | None:
    """The processes that the work is shared with now; None where this one works by itself."""
    now = _NOW.get()
    return now if isinstance(now, Group) else None


def working_group() -> Group | None:
    """The processes that are in the same call, whether they share its samples or go over them in step."""
    now = _NOW.get()
    return now.group if isinstance(now, InStep) else sharing()


@contextmanager
def in_step() -> Iterator[None]:
    """Inside of a call that processes make together: each does all of the work, at the same time as the others.

    Samples are not shared out then. What is, is layers, of which each process tells the others ``across``.
    """
    group = working_group()
    if group is not None:
        group.is_in_step = True
    token = _NOW.set("alone" if group is None else InStep(group))
    try:
        yield
    finally:
        _NOW.reset(token)


@contextmanager
def across() -> Iterator[None]:
    """Inside of ``in_step``, for a moment: processes exchange what each of them knows. The model is not run here."""
    token = _NOW.set(working_group())
    try:
        yield
    finally:
        _NOW.reset(token)


def shards() -> int:
    """Over how many processes the model is spread that is worked on: memory for samples is divided by it."""
    now = _NOW.get()
    return now.group.size if isinstance(now, InStep) else 1


def count() -> int:
    """How many processes share the work now: 1 outside of calls that they make together."""
    group = sharing()
    return 1 if group is None else group.size


def rank() -> int:
    """Which of them this one is, from 0 on."""
    group = sharing()
    return 0 if group is None else group.rank


def is_first() -> bool:
    """Whether this is the process that writes, speaks and draws noise: one that works alone, or the first of several.

    Unlike ``rank`` it is so outside of calls too.
    """
    if _NOW.get() == "alone":
        return True
    if (group := _PLAYED.get()) is not None:
        return group.rank == 0
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@contextmanager
def alone() -> Iterator[None]:
    """What is called inside is done by this process alone, whatever process group there is.

    Without it, every process of an initialised process group has to make the same calls.

    >>> with alone():
    ...     count()
    1
    """
    token = _NOW.set("alone")
    try:
        yield
    finally:
        _NOW.reset(token)


@contextmanager
def together(call: str) -> Iterator[None]:
    """All processes of an initialised process group carry out a call together.

    An error of one is an error of all: those that have none of their own raise ``ProcessError``. Inside of another such
    call, and where there is no group, nothing happens.
    """
    if _NOW.get() is not None or (group := _initialised()) is None:
        yield
        return
    from excise.processes.exchange import confirm, tell

    _meet(group, call)
    group.is_in_step = False
    token = _NOW.set(group)
    try:
        yield
        confirm(f"the end of {call}")
    except ProcessError:
        raise
    except Exception as error:
        if is_of_others(error):
            raise lost(group, error) from error
        tell(error)
        raise
    finally:
        _NOW.reset(token)


def _initialised() -> Group | None:
    """The group of all processes; None where there is no other. Lines are laid where this is called first."""
    if (played := _PLAYED.get()) is not None:
        return played
    if not (dist.is_available() and dist.is_initialized()):
        _require_initialised()
        return None
    if dist.get_world_size() == 1:
        return None
    world = dist.group.WORLD
    if _LAST and _LAST[0][0] is world:
        return _LAST[0][1]
    with _waiting("the first call of excise"):
        door = dist.new_group(backend="gloo", timeout=MEETING)
        inside = dist.new_group(backend="gloo", timeout=WORKING)
    size = dist.get_world_size()
    _LAST[:] = [(world, Group(dist.get_rank(), size, GroupLines(world, door, inside, size)))]
    return _LAST[0][1]


@contextmanager
def played(group: Group) -> Iterator[None]:
    """Calls inside are those of one of several processes, though no process group is initialised."""
    token = _PLAYED.set(group)
    try:
        yield
    finally:
        _PLAYED.reset(token)


def _require_initialised() -> None:
    """Refuse to do the whole work in each of several processes that were started to share it."""
    if (started := started_processes()) > 1:
        raise InputError(
            f"WORLD_SIZE={started} says that {started} processes were started, but no process group is initialised; "
            "call torch.distributed.init_process_group() first, or with excise.alone() let this one work by itself."
        )


def hang_up() -> None:
    """Let go of the lines between processes, before ``destroy_process_group`` takes them down."""
    _LAST.clear()


def _meet(group: Group, call: str) -> None:
    """Wait until all have come to the call."""
    if group.broken:
        raise ProcessError(f"{call} can't be carried out by {group.size} processes any more: {group.broken}")
    with _waiting(call):
        try:
            calls = group.lines.meet(call)
        except RuntimeError as error:
            raise lost(group, error) from error
    others = [f"process {number} {name}" for number, name in enumerate(calls) if name != call]
    if others:
        raise ProcessError(
            f"process {group.rank} calls {call}, and {', '.join(others)}: all must make the same calls, in one order. "
            "What one is to do by itself goes inside excise.alone()."
        )


def is_of_others(error: BaseException) -> bool:
    """Whether an error of torch is that another process has gone, as in a model that is sharded."""
    words = str(error)
    closed = "Connection closed by peer" in words or "Connection reset by peer" in words
    return closed and isinstance(error, RuntimeError)  # data from elsewhere raises OSError


def lost(group: Group, error: Exception) -> ProcessError:
    """The error that others can't be reached, which is for good."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    group.broken = "another process has ended, was killed or can't be reached"
    if "imed out" in first or "imeout" in first:
        group.broken = f"the others did not come to it within {MEETING.total_seconds() / 60:g} minutes"
    return ProcessError(
        f"{group.broken}, so that process {group.rank} stopped too; nothing was applied or written. See what the other "
        f"processes say, and start all of them anew. Calls that one makes by itself go inside excise.alone(). ({first})"
    )


@contextmanager
def _waiting(call: str) -> Iterator[None]:
    """Say so where others do not come."""

    def say() -> None:
        warn(
            f"{call} waits for the other processes, which must make the same call; one that only this process is to "
            "make goes inside excise.alone().",
            WaitingWarning,
        )

    clock = threading.Timer(PATIENCE, say)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()
