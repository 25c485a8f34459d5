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

from excise.demo import customers
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


def overhead(ledger: Ledger, method: str) -> None:
    """What a request takes beside the deletion itself, in the same run."""
    processing: Any = importlib.import_module("excise.ledger.processing")
    real, inside = processing.carry_out, []

    def measured(*arguments: Any) -> Any:
        began = time.perf_counter()
        found = real(*arguments)
        inside.append(time.perf_counter() - began)
        return found

    worker = Worker(ledger, customers(), Policy(method=method, batch=1, points=None))
    processing.carry_out = measured
    total: list[float] = []
    for number in range(PROCESSED + 2):
        ledger.submit(f"customer-{number}")
        began = time.perf_counter()
        worker.run(most=1)
        total.append(time.perf_counter() - began)
    processing.carry_out = real
    deletion = statistics.median(inside[2:])
    rest = statistics.median(all_of_it - part for all_of_it, part in zip(total[2:], inside[2:], strict=True))
    print(f"| {method} | {1000 * deletion:.0f} ms | {1000 * rest:.1f} ms | {rest / deletion:.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--url", help="a PostgreSQL database; by default a new SQLite file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        places = [options.url or f"sqlite:///{folder}/{name}.db" for name in ("full", "step", "auto")]
        with Ledger(places[0], folder=Path(folder) / "full") as ledger:
            full_ledger(ledger, options.requests)
        if options.url is None:
            print("\n| method | deletion | ledger | share |\n|---|---|---|---|")
            for name, place in zip(("step", "auto"), places[1:], strict=True):
                with Ledger(place, folder=Path(folder) / name) as ledger:
                    overhead(ledger, name)


if __name__ == "__main__":
    main()
