"""Independent pieces of work on the workers that joblib was told of: processes, Dask, Ray.

``joblib.parallel_config(backend=..., n_jobs=...)`` says so, as for scikit-learn; without it nothing here is used. A
worker that dies costs its piece, which another one then does.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from excise._support.freed_memory import keeping_freed_memory
from excise._support.parcels import Parcel, opened, packed
from excise._support.ray_cluster import is_ray, processors, remote_options
from excise._support.ray_tasks import on_ray
from excise._support.reading import reason
from excise._support.versions import VERSIONS, require_same, versions_here
from excise.errors import InputError, WorkersLostError, warn

FRUITLESS = 3  # rounds in which workers died and nothing was done, before it is given up
PATIENCE = 10  # seconds for a worker to say what it has installed
DEATHS = frozenset(
    {
        "BrokenProcessPool",  # of processes
        "KilledWorker",  # of Dask
        "FutureCancelledError",
        "CancelledError",
        "CommClosedError",
        "RayError",  # whatever happens to a worker of Ray; errors of its work are others
    }
)
_AT_WORK = threading.Lock()
"""Threads of one process share a random state, so that trainings in them would not be repeatable at once."""

Given = TypeVar("Given")
Shared = TypeVar("Shared")
Found = TypeVar("Found")
Work = Callable[[Shared, Given], Found]
Do = Callable[[Any, int, Given], "Done[Found]"]
"""Gets the parcel, and the place and description of a piece."""


class OneAtATimeWarning(UserWarning):
    """Threads were asked for, in which trainings can't go on at once."""


@dataclass(frozen=True)
class Done(Generic[Found]):
    """A piece of work that is done."""

    place: int
    found: Found


def asked_for() -> bool:
    """Whether ``joblib.parallel_config`` tells of workers, and this process is none itself."""
    if "joblib" not in sys.modules:  # then nobody can have told it anything
        return False
    from joblib import effective_n_jobs
    from joblib.parallel import get_active_backend

    backend = get_active_backend()[0]
    if _AT_WORK.locked() or backend.nesting_level:
        return False
    if _client_of(backend) is not None or (is_ray(backend) and _wanted() != 1):
        return True
    if effective_n_jobs(None) == 1:
        return False
    if getattr(backend, "uses_threads", False):
        warn(
            'parallel_config(backend="threading"): trainings in threads of one process share a random state, so they '
            'are done one after the other; tell joblib of processes (backend="loky") or a cluster.',
            OneAtATimeWarning,
        )
        return False
    return True


def each(work: Work[Shared, Given, Found], shared: Shared, given: Sequence[Given], what: str) -> Iterator[Done[Found]]:
    """What ``work(shared, one)`` gives for each that is given, as they come, from workers.

    Args:
        work: A function of a module that workers have.
        shared: Sent to each worker once.
        given: Small things that tell the pieces apart.
        what: What is shared, in words, for errors.
    """
    from joblib.parallel import get_active_backend

    if not given:
        return
    backend = get_active_backend()[0]
    parcel = packed(shared, what)
    do = partial(_do, work, parcel.digest, getattr(backend, "inner_max_num_threads", None) or 1)
    left, fruitless = dict(enumerate(given)), 0
    while left:
        before, why = len(left), ""
        try:
            for done in _round(backend, do, parcel, list(left.items())):
                left.pop(done.place, None)
                yield done
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "excise":
                raise
            raise InputError(f"a worker lacks the package ({error}); install excise there, as it is here.") from error
        except Exception as error:
            if not _is_death(error):
                raise
            why = f"{type(error).__name__}: {reason(error)}"
            if type(error).__name__ == "KilledWorker":  # on several workers, one after the other
                raise _given_up(why) from error
        fruitless = 0 if len(left) < before else fruitless + 1
        if fruitless == FRUITLESS:
            raise _given_up(why)


def _given_up(why: str) -> WorkersLostError:
    return WorkersLostError(
        f"workers died, or were lost, again and again without a piece of work done ({why}); is there too little memory "
        "for as many at once, or has the cluster gone? What was done is kept where there is a cache: see to it, and go "
        "on."
    )


def require_sendable(shared: object, what: str) -> None:
    """Where there are workers, refuse what can't be sent to them: before anything is done."""
    if asked_for():
        packed(shared, what)


def _round(
    backend: Any, do: Do[Given, Found], parcel: Parcel, pieces: list[tuple[int, Given]]
) -> Iterator[Done[Found]]:
    """What is done of the pieces, as it comes; an error of the first one that fails ends it."""
    client = _client_of(backend)
    if client is not None:
        yield from _on_dask(client, do, parcel, pieces)
        return
    if is_ray(backend):
        yield from on_ray(do, parcel.data, pieces, processors(_wanted()), remote_options(backend))
        return
    from joblib import Parallel, delayed

    data = np.frombuffer(parcel.data, dtype=np.uint8)  # an array is written to memory that processes share
    way = "generator_unordered" if backend.supports_return_generator else "list"
    yield from Parallel(batch_size=1, pre_dispatch="all", return_as=way)([delayed(do)(data, *one) for one in pieces])


def _wanted() -> int | None:
    """How many workers joblib was told of."""
    from joblib.parallel import get_active_backend

    wanted: int | None = get_active_backend()[1]
    return wanted


def _on_dask(
    client: Any, do: Do[Given, Found], parcel: Parcel, pieces: list[tuple[int, Given]]
) -> Iterator[Done[Found]]:
    """The same on a cluster; joblib itself would do it here where the cluster has a single worker, or one left."""
    from distributed import as_completed

    require_same_versions(client)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        # made by a task, so that the scheduler can have it made again where the worker that holds it dies
        data = client.submit(_same, parcel.data, key=f"excise-{parcel.digest}")
    futures = [client.submit(do, data, *one, pure=False) for one in pieces]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield future.result()
    finally:
        client.cancel(futures)


def _do(
    work: Work[Shared, Given, Found], digest: str, threads: int, sent: Any, place: int, given: Given
) -> Done[Found]:
    """A piece, in the worker; with as many threads of torch each time, since sums depend on their number."""
    with _AT_WORK, keeping_freed_memory():
        shared = opened(sent, digest)
        if "torch" not in sys.modules:
            return Done(place, work(shared, given))
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return Done(place, work(shared, given))
        finally:
            torch.set_num_threads(before)


def _client_of(backend: Any) -> Any:
    """The client of Dask, where that is who does the work."""
    return getattr(backend, "client", None) if type(backend).__name__ == "DaskDistributedBackend" else None


def _same(data: bytes) -> bytes:
    return data


def require_same_versions(client: Any) -> None:
    """Refuse workers without the package, or with other versions: their models would be others."""
    mine = versions_here()
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
        answers = client.run(eval, VERSIONS, on_error="return")
    except (OSError, TimeoutError) as error:
        raise InputError(f"the cluster has no workers, or none that answers ({reason(error)}); start some.") from error
    for worker, answer in sorted(answers.items()):
        if isinstance(answer, BaseException):
            raise InputError(
                f"the worker {worker} lacks what it needs ({type(answer).__name__}: {reason(answer)}); install excise "
                f"{mine[0]} there, with the torch and Python that are here."
            )
        require_same(tuple(answer), mine, f"the worker {worker}")


def _is_death(error: BaseException) -> bool:
    """Whether a worker was lost, rather than its work wrong."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & DEATHS)
