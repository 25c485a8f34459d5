"""Pieces of work as tasks of a Ray cluster.

Joblib's own way starts processes anew for every call, in each of which torch must be imported. Ray keeps the processes
of its tasks, and gives a task whose process dies to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from excise._support.versions import require_same, versions_here

ONE_PROCESSOR = {"num_cpus": 1}


def is_ray(backend: Any) -> bool:
    """Whether it is Ray's backend of joblib."""
    return type(backend).__name__ == "RayBackend"


def remote_options(backend: Any) -> dict[str, Any]:
    """What each piece asks of the cluster: one processor, unless ``ray_remote_args`` says otherwise."""
    return ONE_PROCESSOR | dict(getattr(backend, "ray_remote_args", None) or {})


def processors(n_jobs: int | None) -> int:
    """How many pieces are done at once: as many as were asked for, and the cluster has processors for."""
    import ray

    if not ray.is_initialized():
        ray.init()  # or it is told by RAY_ADDRESS where the cluster is
    there = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return there if n_jobs is None or n_jobs < 1 else min(n_jobs, there)


def on_ray(
    do: Callable[..., Any], data: bytes, pieces: Sequence[tuple[Any, ...]], count: int, options: dict[str, Any]
) -> Iterator[Any]:
    """What ``do(data, *piece)`` gives of each piece, as it comes, so many at once."""
    import ray

    sent = ray.put(np.frombuffer(data, dtype=np.uint8))
    task, mine = ray.remote(**options)(_checked), versions_here()
    left = iter(pieces)
    waiting = [task.remote(mine, do, sent, *one) for _, one in zip(range(count), left, strict=False)]
    try:
        while waiting:
            (ready,), waiting = ray.wait(waiting, num_returns=1)
            found = received(ready)
            waiting += [task.remote(mine, do, sent, *one) for _, one in zip(range(1), left, strict=False)]
            yield found
    finally:
        for one in waiting:
            ray.cancel(one, force=True)


def received(reference: Any) -> Any:
    """What a task gave, or its own error, without Ray's words around it."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _checked(versions: tuple[str, ...], do: Callable[..., Any], *given: Any) -> Any:
    """In a worker: do it, where the versions are the same."""
    require_same(versions_here(), versions, "a worker of Ray")
    return do(*given)
