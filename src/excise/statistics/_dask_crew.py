"""Workers of a Dask cluster: each keeps its block of columns in its memory from step to step."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from excise._support.freed_memory import keeping_freed_memory
from excise.errors import InputError
from excise.statistics._block import Loading, Outcome, ask, attempt, column, make
from excise.statistics._crew import lost
from excise.statistics._dask_marks import Channel, Exchange, sharing
from excise.statistics._incremental import Step
from excise.statistics._neighbors import Floats

TRIES = 3
PATIENCE = 30.0  # seconds without any worker
LOOK = 1.0  # seconds between two looks at whether there are workers


def is_inside_a_task() -> bool:
    """Whether this is run by a worker of a cluster, whose threads must not wait for each other."""
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


class DaskCrew:
    """The workers of a client's cluster, a block for each of their threads."""

    def __init__(self, client: Any, n_jobs: int) -> None:
        self._client = client
        threads = sum(self._workers().values())
        self.count = threads if n_jobs < 1 else min(n_jobs, threads)
        self._exchange = Exchange(client)
        self._parts: Sequence[NDArray[Any]] = ()
        self._loading: Loading | None = None
        self._made: dict[int, Any] = {}

    def load(self, parts: Sequence[NDArray[Any]], loading: Loading) -> list[Floats]:
        """Give each worker a part of the columns; their first sums."""
        self._parts, self._loading = parts, loading
        return self._run(_first_sums, dict.fromkeys(range(len(parts)), ()))

    def ask(self, steps: Sequence[Step]) -> list[Floats]:
        """The sums of each part in a later step."""
        with self._exchange.step() as channel:
            return self._run(_ask, {i: (step, channel) for i, step in enumerate(steps)})

    def column(self, part: int, c: int) -> Floats:
        """A column of a part, as it is searched."""
        found: Floats = self._run(_column, {part: (c,)})[0]
        return found

    def _run(self, work: Callable[..., Any], arguments: dict[int, tuple[Any, ...]]) -> list[Any]:
        """``work`` on blocks; one whose worker was lost is made again."""
        done: dict[int, Outcome] = {}
        for tries in range(1, TRIES + 1):
            waiting = {i: self._submit(work, i, arguments[i]) for i in arguments if i not in done}
            error: BaseException | None = None
            for i, future in waiting.items():
                try:
                    done[i] = self._result(future)
                except Exception as problem:  # errors of the work itself come back as outcomes
                    error = problem.with_traceback(None)  # which would keep the futures, and they the workers' memory
                    self._made.pop(i, None)
            if error is None:
                break
            if tries == TRIES:
                raise lost(error, tries) from error
        return [done[i].value() for i in arguments]

    def _submit(self, work: Callable[..., Any], part: int, arguments: tuple[Any, ...]) -> Any:
        if part not in self._made:
            addresses = [address for address, threads in self._workers().items() for _ in range(threads)]
            address = addresses[part % len(addresses)]
            direct = _is_reachable(address)  # else it goes through the scheduler, which has other things to do
            sent = self._client.scatter(self._parts[part], workers=[address], hash=False, direct=direct)
            self._made[part] = self._client.submit(_attempt, part, make, [sent, self._loading], pure=False)
        # a list, because dask looks for results of others in lists, not in objects
        return self._client.submit(_then, part, work, [self._made[part], *arguments], pure=False)

    def _result(self, future: Any) -> Outcome:
        """The outcome, waited for as long as there are workers."""
        from distributed import TimeoutError as NotYet

        since = time.monotonic()
        while True:
            try:
                outcome: Outcome = future.result(timeout=LOOK)[1]
                return outcome
            except NotYet:
                if self._client.ncores():
                    since = time.monotonic()
                elif time.monotonic() - since > PATIENCE:
                    raise

    def _workers(self) -> dict[str, int]:
        workers: dict[str, int] = dict(self._client.ncores())
        if not workers:
            raise InputError("The Dask cluster has no workers; start some, and wait for them by wait_for_workers().")
        return dict(sorted(workers.items()))


def _is_reachable(address: str) -> bool:
    """Whether this process can talk to the worker, which only the scheduler may be able to."""
    from distributed.comm.addressing import get_address_host_port

    try:
        with socket.create_connection(get_address_host_port(address), timeout=LOOK):
            return True
    except (OSError, ValueError):  # ValueError: not an address of the network
        return False


def _attempt(number: int, work: Callable[..., Any], arguments: list[Any]) -> tuple[int, Outcome]:
    """Do it, in a worker whose memory Dask has given back at once."""
    with keeping_freed_memory():
        return attempt(number, work, tuple(arguments))


def _then(number: int, work: Callable[..., Any], arguments: list[Any]) -> tuple[int, Outcome]:
    """Go on with what was made of a block, unless that failed by itself."""
    (_, made), *rest = arguments
    return (number, made) if made.error is not None else _attempt(number, work, [made.result, *rest])


def _first_sums(made: tuple[Any, Floats]) -> Floats:
    return made[1]


def _ask(made: tuple[Any, Floats], step: Step, channel: Channel) -> Floats:
    with sharing(channel, step.mark) as (mark, tell):
        return ask(made[0], replace(step, mark=mark), tell)


def _column(made: tuple[Any, Floats], c: int) -> Floats:
    return column(made[0], c)
