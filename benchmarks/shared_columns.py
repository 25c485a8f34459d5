"""``foci`` with its columns shared out over two workers, against one: prints a table for docs/statistics.md.

One thread per process. Wall-clock ratios need a machine with nothing else to do; the last column, the seconds of
processor time on the longest path (this process and its busiest worker) against those of one process, does not; of
workers that are started for each search it is not known.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ray_cluster import ray_cluster
from benchmarks.statistics import table, warm_up
from excise import foci

TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--backends", nargs="+", default=["loky", "dask"], choices=list(WORKERS))
    options = parser.parse_args()
    X, y = table(options.rows, options.columns)
    print(f"`foci`, {options.rows:,} × {options.columns:,}, one thread per process\n")
    print("| workers | seconds | of one process | ratio | same selection | ratio of processor time |")
    print("|---|---|---|---|---|---|")
    warm_up()
    for backend in options.backends:
        with WORKERS[backend]() as pids:
            search(X[:500], y[:500], backend)  # start and warm up the workers
            for _ in range(options.repeats):
                print(compare(X, y, backend, pids()), flush=True)


def compare(X: Any, y: Any, backend: str, pids: list[int]) -> str:
    shared, path, by_two = timed(lambda: search(X, y, backend), pids)  # first: idle processes of loky end by themselves
    alone, spent, by_one = timed(lambda: foci(X, y, random_state=0, n_jobs=1), [])
    same = np.array_equal(by_one.indices, by_two.indices) and np.array_equal(by_one.scores, by_two.scores)
    of_processor = f"{spent / path:.2f}" if pids else "–"
    return (
        f"| 2 of {backend} | {shared:.1f} | {alone:.1f} | {alone / shared:.2f} | {'yes' if same else 'NO'} "
        f"| {of_processor} |"
    )


def search(X: Any, y: Any, backend: str) -> Any:
    return foci(X, y, random_state=0, n_jobs=2, backend=backend)


def timed(work: Callable[[], Any], pids: list[int]) -> tuple[float, float, Any]:
    """Seconds by the clock, seconds of processor time on the longest path, and the result."""
    before = [processor(pid) for pid in pids]
    begin, own = time.perf_counter(), time.process_time()
    result = work()
    seconds, own = time.perf_counter() - begin, time.process_time() - own
    workers = [processor(pid) - was for pid, was in zip(pids, before, strict=True)]
    return seconds, own + max(workers, default=0.0), result


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def processes() -> Iterator[Callable[[], list[int]]]:
    from joblib.externals.loky import get_reusable_executor

    yield lambda: list(get_reusable_executor(max_workers=2, reuse=True)._processes)


@contextmanager
def cluster() -> Iterator[Callable[[], list[int]]]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        yield lambda: list(client.run(os.getpid).values())


@contextmanager
def ray() -> Iterator[Callable[[], list[int]]]:
    with ray_cluster(2):
        yield list  # workers are started for each search, so that their processor time is not known before


WORKERS = {"loky": processes, "dask": cluster, "ray": ray}

if __name__ == "__main__":
    main()
