"""Several processes, played by threads that take turns: what each would do by itself, and what they would send.

A thread goes on until it has something to send, and then the next one does. So the sums are right, and of every stretch
between two exchanges it is known how long each process would work by itself, on a machine of any number of cores.
"""

from __future__ import annotations

import contextvars
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from excise.processes.group import Group, played

T = TypeVar("T")
Clock = Callable[[], float]
Kind = Literal["words", "add", "spread", "objects"]
Sent = Mapping[tuple[Kind, int], int]
"""How often something of a kind and so many bytes is sent."""


class Ended(Exception):
    """Another process of the play has failed."""


@dataclass(frozen=True)
class Rehearsed:
    """What a piece of work took."""

    seconds: float
    """Of the process that is slowest, stretch by stretch, without sending."""
    sent: Sent


class Rehearsal:
    """So many threads, each of which plays a process, one at a time."""

    def __init__(self, count: int, clock: Clock) -> None:
        self.count, self._clock = count, clock
        self._changed = threading.Condition()
        self._turn, self._failed, self._over = 0, False, False
        self._given: dict[int, list[Any]] = {}
        self._rounds = [0] * count
        self._began = self._stretch = self._seconds = 0.0
        self._sent: Counter[tuple[Kind, int]] = Counter()

    def play(self, act: Callable[[int], T]) -> list[T]:
        """What ``act`` gives for each rank; the first error of a process ends all, and is raised."""
        self._turn, self._failed, self._over = 0, False, False
        self._rounds = [0] * self.count
        self._given.clear()
        found: dict[int, T] = {}
        errors: dict[int, BaseException] = {}
        threads = torch.get_num_threads()

        def run(rank: int) -> None:
            torch.set_num_threads(threads)  # which torch keeps for each thread of its own
            try:
                self._wait(rank)
                with played(Group(rank, self.count, _PlayedLines(self, rank))):
                    found[rank] = act(rank)
                self._end(rank)
            except BaseException as error:
                errors[rank] = error
                self._fail()

        contexts = [contextvars.copy_context() for _ in range(self.count)]
        acting = [threading.Thread(target=context.run, args=(run, rank)) for rank, context in enumerate(contexts)]
        for one in acting:
            one.start()
        for one in acting:
            one.join()
        if errors:
            raise next((error for error in errors.values() if not isinstance(error, Ended)), Ended())
        return [found[rank] for rank in range(self.count)]

    def timed(self, rank: int, work: Callable[[], object]) -> Rehearsed:
        """What a work takes that all ranks do inside of ``play``."""
        self.exchange(rank, None)
        if rank == 0:
            self._seconds = self._stretch = 0.0
            self._sent.clear()
        self.go_on()
        work()
        self.stop()
        self.exchange(rank, None)
        found = Rehearsed(self._seconds, dict(self._sent))
        self.exchange(rank, None)  # before any of them begins anew
        return found

    def stop(self) -> None:
        """The clock stops for who has the turn: what it has worked is as long as the longest of the others, or not."""
        self._stretch = max(self._stretch, self._clock() - self._began)

    def go_on(self) -> None:
        """The clock goes for who has the turn."""
        self._began = self._clock()

    def exchange(self, rank: int, own: T, kind: Kind | None = None, size: int = 0) -> list[T]:
        """What all ranks give, once they have come to it."""
        if self._over:  # another one is done, and does not send
            raise Ended
        place = self._rounds[rank]
        self._rounds[rank] += 1
        given = self._given.setdefault(place, [])
        given.append(own)
        if rank == 0 and kind is not None:
            self._sent[kind, size] += 1
        if rank == self.count - 1:
            self._seconds += self._stretch
            self._stretch = 0.0
            del self._given[place]
        self._pass_on(rank)
        self._wait(rank)
        return given

    def _pass_on(self, rank: int) -> None:
        with self._changed:
            self._turn = (rank + 1) % self.count
            self._changed.notify_all()

    def _end(self, rank: int) -> None:
        self._over = True
        self._pass_on(rank)

    def _wait(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._turn == rank)
        if self._failed:
            raise Ended

    def _fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class _PlayedLines:
    """The lines of a process that is played."""

    play: Rehearsal
    rank: int

    def words(self, own: Tensor) -> list[Tensor]:
        """Copies, as sent ones are."""
        return self._exchanged(own.clone, "words", own.nbytes, lambda given: [one.clone() for one in given])

    def add(self, flat: Tensor) -> None:
        """In the order of the ranks, so that all get the same."""
        self._exchanged(flat.clone, "add", flat.nbytes, lambda given: flat.copy_(_sum(given)))

    def spread(self, flat: Tensor, source: int) -> None:
        """From whom it is."""
        self._exchanged(flat.clone, "spread", flat.nbytes, lambda given: flat.copy_(given[source]))

    def objects(self, own: Any) -> list[Any]:
        """Pickled, as they are sent."""
        self.play.stop()
        parcel = pickle.dumps(own)
        return self._exchanged(
            lambda: parcel, "objects", len(parcel), lambda given: [pickle.loads(one) for one in given]
        )

    def meet(self, call: str) -> list[str]:
        """The same."""
        return self.objects(call)

    def _exchanged(self, own: Callable[[], Any], kind: Kind, size: int, put: Callable[[list[Any]], T]) -> T:
        """The clock stands meanwhile: to make a parcel and to open it is part of sending it."""
        self.play.stop()
        found = put(self.play.exchange(self.rank, own(), kind, size))
        self.play.go_on()
        return found


def _sum(given: Sequence[Tensor]) -> Tensor:
    total = given[0].clone()
    for one in given[1:]:
        total += one
    return total
