"""Retrainings at once: ``python -m benchmarks.trainings`` times 8 of them on 2 workers against one after the other.

One thread in each process; both in one run, alternating, so that other work on the machine harms both alike. Workers
are started and warmed up before the clock runs, as a cluster is; ``--cold`` counts their start too. With ``--kill`` a
worker of the cluster is killed in the middle, and the models must be the same all the same. ``--engines ray`` needs the
extra of that name.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import joblib
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.ray_cluster import pids_of_ray, ray_cluster
from excise import Task, fit
from excise.training.several import retrainings

FORGET = [3, 5, 8]


def task_of(samples: int, epochs: int) -> Task:
    """A network of some seconds of training."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 256, generator=generator)
    data = TensorDataset(inputs, inputs[:, :10].argmax(1))

    def network(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        start = Task(network(seed), nn.CrossEntropyLoss(), data, weight_decay=1e-3)
        return fit(start, ids=ids, epochs=epochs, seed=seed).model

    return Task(network(0), nn.CrossEntropyLoss(), data, weight_decay=1e-3, retrain=retrain)


def made(task: Task, count: int, seed: int) -> list[Tensor]:
    """The weights of so many retrained models."""
    models = [one.model for one in retrainings(task, FORGET, count, seed=seed)]
    return [torch.cat([weight.detach().flatten() for weight in model.parameters()]) for model in models]


@contextmanager
def told(how: str, workers: int) -> Iterator[Callable[[], list[int]] | None]:
    """Joblib told of workers; of a cluster, what tells the numbers of its processes."""
    if how == "loky":
        with joblib.parallel_config(backend="loky", n_jobs=workers):
            yield None
        return
    if how == "ray":
        with ray_cluster(workers), joblib.parallel_config(backend="ray", n_jobs=workers):
            yield pids_of_ray
        return
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        joblib.parallel_config(backend="dask", client=client),
    ):
        yield lambda: list(client.run(os.getpid).values())


def killed_in_the_middle(pids: Callable[[], list[int]], task: Task, count: int, seconds: float) -> bool:
    """Whether the models are the same though a worker is killed after some seconds."""
    import threading

    threading.Timer(seconds, lambda: os.kill(pids()[0], signal.SIGKILL)).start()
    found = made(task, count, 0)
    with joblib.parallel_config(backend="sequential"):
        return all(torch.equal(a, b) for a, b in zip(found, made(task, count, 0), strict=True))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["loky", "dask"], choices=["loky", "dask", "ray"])
    parser.add_argument("--count", type=int, default=8, help="retrainings")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="count the start of the workers too")
    parser.add_argument("--kill", action="store_true", help="kill a worker of the cluster in the middle")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = task_of(options.samples, options.epochs)
    print("| workers | one by one, s | at once, s | speed-up | same models |\n|---|---|---|---|---|")
    for how in options.engines:
        alone, together, same = [], [], True
        with told(how, options.workers) as pids:
            if not options.cold:
                made(task, options.workers, 1)
            for _ in range(options.repeats):
                with joblib.parallel_config(backend="sequential"):
                    began = time.perf_counter()
                    first = made(task, options.count, 0)
                    alone.append(time.perf_counter() - began)
                began = time.perf_counter()
                second = made(task, options.count, 0)
                together.append(time.perf_counter() - began)
                same &= all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            ratio = statistics.median(a / b for a, b in zip(alone, together, strict=True))
            seconds = [statistics.median(some) for some in (alone, together)]
            print(
                f"| {options.workers} of {how} | {seconds[0]:.1f} | {seconds[1]:.1f} | {ratio:.2f} × | {same} |",
                flush=True,
            )
            if options.kill and pids is not None:
                same = killed_in_the_middle(pids, task, options.count, seconds[1] / 2)
                print(f"| {how}, a worker killed in the middle | – | – | – | {same} |", flush=True)


if __name__ == "__main__":
    main()
