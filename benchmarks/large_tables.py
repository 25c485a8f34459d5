"""``foci`` on 10⁸ rows, to ± 0.01: prints a table for docs/statistics.md.

The rows are made in pieces that go by once, or one by one when they are asked for (as from a file on disk); y is the
sum of two of ten normal columns and as much noise as one of them, so that T = 3/π arcsin(5/6) - ½. Each is measured in
a process of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri

from benchmarks.statistics import in_new_process, peak_bytes
from excise import Tolerance, foci
from excise.statistics._neighbors import mix

COLUMNS = 10
TRUTH = 3 / np.pi * np.arcsin(5 / 6) - 0.5


def pieces(rows: int, at_once: int = 2**18) -> Iterator[tuple[Any, Any]]:
    for number, begin in enumerate(range(0, rows, at_once)):
        rng = np.random.default_rng(number)
        X = rng.standard_normal((min(at_once, rows - begin), COLUMNS), dtype=np.float32)
        yield X, X[:, 3] + X[:, 7] + rng.standard_normal(len(X), dtype=np.float32)


class Virtual:
    """A table whose rows are computed when they are asked for."""

    def __init__(self, rows: int) -> None:
        self.shape = rows, COLUMNS

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return np.column_stack([normal(rows, c) for c in range(COLUMNS)])


class VirtualTarget(Virtual):
    """Its y."""

    def __init__(self, rows: int) -> None:
        self.shape = (rows,)  # type: ignore[assignment]

    def __getitem__(self, rows: Any) -> Any:
        return normal(rows, 3) + normal(rows, 7) + normal(rows, COLUMNS)


def normal(rows: Any, column: int) -> Any:
    """A number that belongs to the place: the same each time."""
    key = np.uint64(mix(np.uint64(1), column))
    return ndtri(
        (np.array([mix(key, row) for row in rows.tolist()], dtype=np.uint64) >> np.uint64(11)) * 2.0**-53 + 1e-17
    )


SOURCES: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "pieces that go by once": lambda rows: (pieces(rows), None),
    "rows by their numbers": lambda rows: (Virtual(rows), VirtualTarget(rows)),
}


def _measure(source: str, rows: int, tolerance: float, send: Any) -> None:
    small = SOURCES[source](100_000)
    foci(*small, sample=Tolerance(0.1), random_state=0)  # load the compiled code
    begin, spent = time.perf_counter(), time.process_time()
    found = foci(*SOURCES[source](rows), sample=Tolerance(tolerance), random_state=0)
    seconds, spent = time.perf_counter() - begin, time.process_time() - spent
    if found.errors is None:
        raise RuntimeError("foci was given sample= and says nothing about errors")
    first = found.indices[:2].tolist()
    figures = found.sampling, found.totals[1], found.errors[1], sorted(first), len(found)
    send.send((seconds, spent, peak_bytes(), *figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**8)
    parser.add_argument("--tolerance", type=float, default=0.01)
    options = parser.parse_args()
    print(
        f"`foci(..., sample=Tolerance({options.tolerance:g}))`, {options.rows:,} × {COLUMNS}, "
        f"T of the two columns is {TRUTH:.4f}\n"
    )
    print(
        "| rows come as | seconds | of processor time | GiB in all | rows used | chosen first | T of these "
        "| standard error | T of all, ± |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for source in SOURCES:
        seconds, spent, memory, sampling, total, error, first, count = in_new_process(
            _measure, source, options.rows, options.tolerance
        )
        print(
            f"| {source} | {seconds:.0f} | {spent:.0f} | {memory / 2**30:.2f} | {sampling.rows:,} "
            f"| {first} of {count} | {total:.4f} | {error:.4f} | {sampling.half_width:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
