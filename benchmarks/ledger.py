"""What the ledger costs: requests taken in a second, answers from a full ledger, and a request's share of its deletion.

python -m benchmarks.ledger [--requests 100000] [--url postgresql://...]
"""

from __future__ import annotations

import argparse
import importlib
import resource
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, fit
from excise.datasets.mnist import load_mnist
from excise.demo import customers
from excise.errors import DataError
from excise.ledger.identities import Identity, Submission
from excise.ledger.ledger import Ledger
from excise.ledger.policy import Policy
from excise.ledger.processing import Worker
from excise.ledger.verification import verify_ledger

AT_ONCE = 1000
PROCESSED = 20


def submissions(count: int) -> Iterator[Submission]:
    for number in range(count):
        yield Submission(str(uuid.uuid4()), (Identity("key", f"nobody-{number}"),))


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def timed(name: str) -> Iterator[None]:
    before, began = peak(), time.perf_counter()
    yield
    print(f"| {name} | {time.perf_counter() - began:.2f} s | {peak() - before:+.0f} MiB |", flush=True)


def full_ledger(ledger: Ledger, count: int) -> None:
    print(f"\n| {count:,} requests | time | memory |\n|---|---|---|")
    began = time.perf_counter()
    waiting = submissions(count)
    with timed(f"submit, {AT_ONCE:,} at a time"):
        for _ in range(count // AT_ONCE):
            last = ledger.submit_all(next(waiting) for _ in range(AT_ONCE))[-1]
    rate = count / (time.perf_counter() - began)
    with timed("list 50"):
        list(ledger.requests(limit=50))
    with timed("list all"):
        sum(1 for _ in ledger.requests())
    with timed("show one, with its events"):
        list(ledger.events(ledger.request(last.subject_request_id).subject_request_id))
    with timed("verify"):
        found = verify_ledger(ledger)
    print(f"\n{rate:,.0f} requests submitted a second; {found.events:,} events verified, whole: {found.is_whole}")


def overhead(ledger: Ledger, name: str, task: Task, method: str) -> None:
    """What a request takes beside the deletion itself, in the same run."""
    processing: Any = importlib.import_module("excise.ledger.processing")
    real, inside = processing.carry_out, []

    def measured(*arguments: Any) -> Any:
        began = time.perf_counter()
        found = real(*arguments)
        inside.append(time.perf_counter() - began)
        return found

    worker = Worker(ledger, task, Policy(method=method, batch=1, points=None))
    processing.carry_out = measured
    for number in range(PROCESSED + 2):
        ledger.submit(f"customer-{number}")
    worker.run(most=2)  # what is compiled or made once is made now
    inside.clear()
    began = time.perf_counter()
    worker.run()
    rest = (time.perf_counter() - began - sum(inside)) / len(inside)
    processing.carry_out = real
    deletion = statistics.mean(inside)
    print(
        f"| {name} | {method} | {1000 * deletion:.0f} ms | {1000 * rest:.1f} ms | {rest / deletion:.1%} |", flush=True
    )


def networks() -> dict[str, Task]:
    """The demo's, and where the data are there one for MNIST: 784-128-64-10, all 60,000 digits, ten a customer."""
    found = {"digits": customers()}
    try:
        sets = [tuple(map(torch.from_numpy, load_mnist(part=part))) for part in ("train", "test")]
    except DataError as error:
        print(f"\nwithout MNIST: {error}")
        return found
    learned, held_out = (TensorDataset(images.flatten(1), labels) for images, labels in sets)
    torch.manual_seed(0)
    layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    task = Task(
        nn.Sequential(*layers),
        nn.CrossEntropyLoss(),
        learned,
        held_out,
        weight_decay=2e-4,
        keys=[f"customer-{place // 10}" for place in range(len(learned))],
    )
    return {**found, "MNIST": task.with_model(fit(task, epochs=3, lr=0.1, seed=0).model)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--url", help="a PostgreSQL database; by default a new SQLite file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.requests:
            with Ledger(options.url or f"sqlite:///{folder}/full.db", folder=Path(folder) / "full") as ledger:
                full_ledger(ledger, options.requests)
        print("\n| network | method | deletion | ledger | share |\n|---|---|---|---|---|")
        for name, task in networks().items():
            for method in ("step", "auto"):
                with Ledger(f"sqlite:///{folder}/{name}-{method}.db") as ledger:
                    overhead(ledger, name, task, method)


if __name__ == "__main__":
    main()
