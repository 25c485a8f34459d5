"""A Ray cluster on this machine, for the benchmarks of workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NICENESS = "RAY_worker_niceness"
TASK = "_checked"  # the function that does a piece: Ray names processes by it


@contextmanager
def ray_cluster(workers: int) -> Iterator[None]:
    """So many workers, which take their turns as other processes do: Ray would let all others go first."""
    os.environ.setdefault(NICENESS, "0")
    import ray
    from ray.util.joblib import register_ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
    register_ray()
    try:
        yield
    finally:
        ray.shutdown()


def pids_of_ray() -> list[int]:
    """The processes of this cluster that are at a piece of work."""
    import psutil

    own = psutil.Process().children(recursive=True)
    return [one.pid for one in own if one.name() == f"ray::{TASK}"]
