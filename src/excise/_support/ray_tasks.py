"""Pieces of work as tasks of a Ray cluster.

Joblib's own way starts processes anew for every call, in each of which torch must be imported. Ray keeps the processes
of its tasks, and gives a task whose process dies to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from excise._support.ray_cluster import first_ready, received
from excise._support.versions import require_same, versions_here


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
            ready = first_ready(waiting)
            waiting.remove(ready)
            found = received(ready)
            waiting += [task.remote(mine, do, sent, *one) for _, one in zip(range(1), left, strict=False)]
            yield found
    finally:
        for one in waiting:
            ray.cancel(one, force=True)


def _checked(versions: tuple[str, ...], do: Callable[..., Any], *given: Any) -> Any:
    """In a worker: do it, where the versions are the same."""
    require_same(versions_here(), versions, "a worker of Ray")
    return do(*given)
