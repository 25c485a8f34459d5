"""What trainings and searches on Ray share: how many workers there are, and answers that are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from excise.errors import WorkersLostError

ONE_PROCESSOR = {"num_cpus": 1}
LOOK = 10.0  # seconds between two looks at whether there are machines


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


def first_ready(references: Sequence[Any]) -> Any:
    """The first answer that is there, waited for as long as there are machines."""
    import ray

    while True:
        ready, _ = ray.wait(list(references), num_returns=1, timeout=LOOK)
        if ready:
            return ready[0]
        if not any(node["Alive"] for node in ray.nodes()):
            raise WorkersLostError("the Ray cluster has no machine left that is alive; start it anew.")


def received(reference: Any) -> Any:
    """What a task gave, or its own error, without Ray's words around it."""
    import ray

    try:
        return ray.get(first_ready([reference]))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
