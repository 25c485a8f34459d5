"""Is the error bar of T right? Prints the three tables of docs/statistics.md.

The first compares standard errors with the spread of T over many tables. The second counts how often the 95 % interval
holds the T of all rows that there could be, which is known from the distribution. The third lets ``foci`` find out
by itself how many rows it needs, and compares with T of the whole table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.known_tables import FEW_COLUMNS, KINDS, Kind
from excise import Tolerance, codec, foci
from excise.statistics._measuring import PARTS, measure

ROWS, TABLES, CHECKED = 1000, 400, 12
ENDLESS = 10**15  # rows


def standardised(X: Any) -> Any:
    return (X - X.mean(axis=0)) / X.std(axis=0)


def jackknife(y: Any, X: Any, _: Any) -> float:
    left = np.array([codec(np.delete(y, i), np.delete(X, i, axis=0), random_state=0) for i in range(0, len(y), 4)])
    return float(np.sqrt((len(y) - 1) * left.var()))


def bootstrap(y: Any, X: Any, rng: Any, m: int | None = None) -> float:
    m = m or len(y)
    drawn = [rng.integers(0, len(y), m) for _ in range(60)]
    return float(np.std([codec(y[i], X[i], random_state=rng) for i in drawn], ddof=1) * np.sqrt(m / len(y)))


def parts(y: Any, X: Any, _: Any) -> float:
    found = [codec(y[i::PARTS], X[i::PARTS], random_state=0) for i in range(PARTS)]
    return float(np.std(found, ddof=1) / np.sqrt(PARTS))


METHODS: dict[str, Callable[..., float]] = {
    "jackknife": jackknife,
    "bootstrap": bootstrap,
    "m out of n, m = √n": lambda y, X, rng: bootstrap(y, X, rng, m=int(len(y) ** 0.5)),
    "16 disjoint parts": parts,
}


def standard_errors() -> None:
    print(f"Standard error of T over its true spread, {ROWS:,} rows (1 is right)\n")
    print(f"| y is | spread of T | {' | '.join(METHODS)} |\n|---|---|{'---|' * len(METHODS)}")
    for kind in FEW_COLUMNS:
        spread = np.std([_t(*kind.draw(np.random.default_rng(i), ROWS)) for i in range(TABLES)])
        ratios = []
        for method in METHODS.values():
            found = []
            for i in range(CHECKED):
                rng = np.random.default_rng(10_000 + i)
                y, X = kind.draw(rng, ROWS)
                found.append(method(y, standardised(X), rng))
            ratios.append(np.sqrt(np.mean(np.square(found))) / spread)
        print(f"| {kind.name} | {spread:.4f} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)


def coverage(rows: int, trials: int) -> None:
    """A last column of 1 is an interval as wide as a normal T of known spread and no bias would have."""
    print(f"\nHow often of {trials} the 95 % interval of {rows:,} rows holds T of endlessly many\n")
    heads = (
        "y is",
        "columns",
        "T",
        "T of endlessly many",
        "standard error alone",
        "interval",
        "half-width",
        "by 1.96 spreads",
    )
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for kind in KINDS:
        truth = kind.truth()
        found = [_measured(kind, rows, i) for i in range(trials)]
        T, low, high, width = (
            np.array(of)
            for of in zip(*((m.totals[-1], m.low[-1], m.high[-1], m.half_width) for m in found), strict=True)
        )
        alone = np.mean(np.abs(T - truth) <= T - low)
        held = np.mean((low <= truth) & (truth <= high))
        print(
            f"| {kind.name} | {len(found[0].totals)} | {T.mean():.3f} | {truth:.3f} | {alone:.0%} | {held:.0%} "
            f"| {width.mean():.3f} | {width.mean() / (1.96 * T.std()):.1f} |",
            flush=True,
        )


def stopping(rows: int, tolerance: float, trials: int) -> None:
    print(f"\n`foci(X, y, sample=Tolerance({tolerance:g}))` on tables of {rows:,} rows, against T of all their rows\n")
    heads = "y is", "rows used", "tolerance reached", "T off by no more than that", "interval holds T", "farthest"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for kind in KINDS:
        found = [_stopped(kind, rows, tolerance, i) for i in range(trials)]
        used, reached, near, held, off = zip(*found, strict=True)
        print(
            f"| {kind.name} | {np.mean(used):,.0f} | {np.mean(reached):.0%} | {np.mean(near):.0%} "
            f"| {np.mean(held):.0%} | {max(off):.3f} |",
            flush=True,
        )


def _stopped(kind: Kind, rows: int, tolerance: float, seed: int) -> tuple[int, bool, bool, bool, float]:
    y, X = kind.draw(np.random.default_rng(6 * 10**6 + seed), rows)
    found = foci(X, y, sample=Tolerance(tolerance), random_state=seed, stop=False, n_jobs=1)
    sampling = found.sampling
    if sampling is None:
        raise RuntimeError("foci was given sample= and says nothing about it")
    truth = _t(y, X)
    off = abs(found.totals[-1] - truth)
    held = sampling.low[-1] <= truth <= sampling.high[-1]
    return sampling.rows, sampling.reached, off <= tolerance, bool(held), off


def _measured(kind: Kind, rows: int, seed: int) -> Any:
    y, X = kind.draw(np.random.default_rng(5 * 10**6 + seed), rows)
    return measure(standardised(X), y, table_rows=ENDLESS, fresh=True, seed=np.uint64(seed), n_jobs=1)


def _t(y: Any, X: Any) -> float:
    return codec(y, standardised(X), random_state=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--table-rows", type=int, default=150_000)
    parser.add_argument("--tables", type=int, default=10, help="of each kind, for the third table")
    parser.add_argument("--tolerance", type=float, default=0.015)
    parser.add_argument("--only", choices=["errors", "coverage", "stopping"])
    options = parser.parse_args()
    if options.only in (None, "errors"):
        standard_errors()
    if options.only in (None, "coverage"):
        coverage(options.rows, options.trials)
    if options.only in (None, "stopping"):
        stopping(options.table_rows, options.tolerance, options.tables)


if __name__ == "__main__":
    main()
