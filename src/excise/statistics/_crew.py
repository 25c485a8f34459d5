"""Workers that blocks of columns are given to: those of the backend that was asked for, by name or through joblib."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from numpy.typing import NDArray

from excise._support.ray_cluster import is_ray
from excise.errors import InputError, WorkersLostError
from excise.statistics._block import Loading
from excise.statistics._incremental import Step
from excise.statistics._neighbors import Floats

WORTH_SHARING = 2**22
"""Values from which on a table is shared out through ``joblib.parallel_config``: less is done sooner in threads."""


class Crew(Protocol):
    """Workers with a block of columns each."""

    count: int

    def load(self, parts: Sequence[NDArray[Any]], loading: Loading) -> list[Floats]:
        """Give each worker a part of the columns; their first sums."""
        ...

    def ask(self, steps: Sequence[Step]) -> list[Floats]:
        """The sums of each part in a later step."""
        ...

    def column(self, part: int, c: int) -> Floats:
        """A column of a part, as it is searched."""
        ...


@contextmanager
def crew_of(backend: str | None, n_jobs: int | None, values: int) -> Iterator[Crew | None]:
    """Workers for a table of so many values; None for the threads of this process."""
    if backend is None:
        # who has not imported joblib has not asked it for workers
        if values < WORTH_SHARING or "joblib" not in sys.modules:
            yield None
            return
        with _active(n_jobs, values) as crew:
            yield crew
        return
    if not isinstance(backend, str):
        raise InputError(f"backend={backend!r} can't be used: pass the name of one of joblib's, such as 'loky'.")
    import joblib

    try:
        chosen = joblib.parallel_config(backend=backend)
    except (ValueError, ImportError, TypeError) as error:
        raise InputError(f"backend={backend!r} can't be used: {_words(error)}") from None
    with chosen, _active(n_jobs, values) as crew:
        yield crew


@contextmanager
def _active(n_jobs: int | None, values: int) -> Iterator[Crew | None]:
    from joblib.parallel import get_active_backend

    # a backend that nobody asked for is one of threads here, and the tasks of workers are not shared out again
    backend, configured = get_active_backend(prefer="threads")
    if getattr(backend, "uses_threads", False) or backend.nesting_level:
        yield None
        return
    wanted = next((jobs for jobs in (n_jobs, configured) if jobs is not None), -1)
    if hasattr(backend, "client"):
        from excise.statistics._dask_crew import DaskCrew, is_inside_a_task

        yield None if is_inside_a_task() else DaskCrew(backend.client, wanted)
        return
    if is_ray(backend):
        from excise.statistics._ray_crew import ray_crew

        with ray_crew(backend, wanted) as actors:
            yield actors
        return
    from excise.statistics._joblib_crew import joblib_crew

    with joblib_crew(backend, wanted, values) as crew:
        yield crew


def lost(error: BaseException, times: int) -> WorkersLostError:
    """The error of workers that don't stay."""
    return WorkersLostError(
        f"Workers were lost {times} times ({type(error).__name__}: {_words(error)}); start workers that have this "
        "package and more memory, or leave out the backend."
    )


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".") or type(error).__name__
