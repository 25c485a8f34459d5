"""The search on a sample of the rows: chosen on some, measured on others, more of both until T is exact enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise._support import checks
from excise._support.progress import Bar
from excise.errors import ToleranceWarning, warn
from excise.statistics._drawing import Drawn, FromArrays, FromPieces, Most
from excise.statistics._incremental import standardized
from excise.statistics._measuring import Measured, measure
from excise.statistics._neighbors import Floats, Ints, as_floats, scaled
from excise.statistics._search import Search, constant_columns, selection_of, threads_of
from excise.statistics.dependence import perturbed
from excise.statistics.selection import LEAST_ROWS, Sampling, Selection, Tolerance, read_only

FIRST = 2**14
"""Rows that a search with a tolerance begins with."""
MOST_SEARCHED = 2**16
"""The most rows that it searches, if not that many are wanted expressly: time grows faster than they do."""
SEARCH_VALUES = 2**25
"""The most values (rows × columns) that it searches: 400 MB as they are kept."""
HELD_VALUES = 2**25
"""The most values that it keeps of a table that comes in pieces."""
FEWEST_OTHERS = 1600
"""With fewer rows left over, T is measured on those that were searched."""
MARGIN = 1.5  # times the rows that should do: how many do is not known exactly
AT_FIRST, LATER = (1.0, 8.0), (2.0, 8.0)  # the least and the most times the rows before
QUARTERS = 4

Sample = int | Tolerance


def draw(X: Any, y: Any, sample: Sample, rng: np.random.Generator) -> Drawn:
    """The rows of a table that a search with that sample may ask for."""
    if isinstance(X, Iterator):
        return FromPieces(X, y, rows_to_hold(sample), rng)
    return FromArrays(X, y, partial(_most, sample), rng)


def rows_to_hold(sample: Sample) -> Most:
    """How many rows are kept of a table of so many columns that goes by once."""
    if not isinstance(sample, Tolerance):
        return partial(_most, sample)
    return lambda columns: min(_most(sample, columns), max(HELD_VALUES // columns, 2 * FIRST))


def _most(sample: Sample, columns: int) -> int:
    if isinstance(sample, Tolerance):
        return _most_searched(columns) + sample.most_rows
    return 2 * checks.whole(sample, "sample", LEAST_ROWS, "the rows to search, or excise.Tolerance(0.01)")


def _most_searched(columns: int) -> int:
    return max(min(SEARCH_VALUES // columns, MOST_SEARCHED), FIRST)


def search_sample(drawn: Drawn, search: Search, sample: Sample, rng: np.random.Generator, bar: Bar) -> Selection:
    """Choose columns on some of the drawn rows, and measure T on others."""
    search.limit(drawn.width)  # before anything is read
    work = _Work(drawn, search, rng, bar)
    if not isinstance(sample, Tolerance):
        if drawn.count < drawn.table_rows:  # rows with gaps may be missing
            sample = min(sample, drawn.count // 2)
        return work.result(*work.round(min(sample, drawn.count), sample), None)
    if drawn.count == drawn.table_rows < 2 * FIRST:
        return work.result(*work.round(drawn.count, drawn.count), sample)
    # The rows searched say how many others T is measured on. These must not say it themselves: one that is low by luck
    # seems to have little left to gain, and a search that stopped there would prefer low T.
    _, pilot = work.round(FIRST, 0)
    rows = _enough(FIRST, pilot.half_width, sample, *AT_FIRST)
    while True:
        searched = min(rows, _most_searched(drawn.width), drawn.count // 2)
        others = min(rows, sample.most_rows, drawn.count - searched)
        chosen, measured = work.round(searched, others)
        if measured.half_width <= sample.half_width or others < rows:
            return work.result(chosen, measured, sample)
        rows = _enough(rows, measured.half_width, sample, *LATER)


def _enough(rows: int, width: float, asked: Tolerance, least: float, most: float) -> int:
    """How many rows should do, where so many give T to ± ``width``."""
    times = MARGIN * (width / asked.half_width) ** 2 if np.isfinite(width) else most
    return round(rows * min(max(times, least), most))


@dataclass(frozen=True)
class _Chosen:
    """What a search chose on some rows."""

    X: NDArray[Any]
    y: NDArray[Any]
    """The rows, in random order."""
    selection: Selection
    constant: Ints
    """Columns that could not be chosen."""
    best: Ints
    """The chosen columns; where there are none, the best one."""


class _Work:
    """The same search, on more and more rows."""

    def __init__(self, drawn: Drawn, search: Search, rng: np.random.Generator, bar: Bar) -> None:
        self._drawn, self._search, self._rng, self._bar = drawn, search, rng, bar
        self._last: _Chosen | None = None

    def round(self, searched: int, others: int) -> tuple[_Chosen, Measured]:
        """Search so many rows, and measure T on so many others, where there are."""
        if self._last is None or len(self._last.y) != searched:
            self._last = self._choose(searched)
        left = min(others, self._drawn.count - searched)
        return self._last, self._measure(self._last, left if left >= min(others, FEWEST_OTHERS) else 0)

    def _choose(self, count: int) -> _Chosen:
        whole = count == self._drawn.table_rows
        X, y = self._drawn.everything() if whole else self._drawn.read(slice(0, count))
        selection, constant = self._run(self._search, X, y)
        best = selection.indices
        if len(best) == 0 and not _is_constant(y):
            best = self._run(replace(self._search, method="cheap", keep_first=True), X, y)[0].indices
        if whole:
            order = self._rng.permutation(count)
            X, y = X[order], y[order]
        return _Chosen(X, y, selection, constant, best)

    def _run(self, search: Search, X: NDArray[Any], y: NDArray[Any]) -> tuple[Selection, Ints]:
        """Search the columns that are not constant; and which are."""
        names = self._drawn.names
        constant = constant_columns(X) if search.standardize else np.empty(0, dtype=np.int64)
        if len(constant) in (0, X.shape[1]):
            return search.run(X, y, names, self._rng, self._bar), constant
        varying = np.setdiff1d(np.arange(X.shape[1]), constant)
        if search.max_features is not None:
            search = replace(search, max_features=min(search.max_features, len(varying)))
        found = search.run(X[:, varying], y, None, self._rng, self._bar)
        chosen = varying[found.indices].tolist()
        return selection_of(chosen, found.scores.tolist(), found.totals.tolist(), names), constant

    def _measure(self, chosen: _Chosen, others: int) -> Measured:
        self._bar.start("measuring T", 1)
        points, y = chosen.X[:, chosen.best], chosen.y
        if others:
            points, y = self._drawn.read(slice(self._drawn.count - others, self._drawn.count), chosen.best)
        y, points = perturbed(self._rng, y, points, noise=self._search.noise, perturb=self._search.perturb)
        return measure(
            self._comparable(points),
            y,
            table_rows=self._drawn.table_rows,
            fresh=others > 0,
            seed=checks.key(self._rng),
            n_jobs=threads_of(self._search.n_jobs),
            totals=None if others or len(chosen.selection) == 0 else chosen.selection.totals,
        )

    def _comparable(self, points: NDArray[Any]) -> Floats:
        if self._search.standardize or points.shape[1] == 0:
            return standardized(as_floats(points))
        floats = as_floats(points)
        return scaled(floats, np.frexp(np.abs(floats).max())[1])

    def result(self, chosen: _Chosen, measured: Measured, asked: Tolerance | None) -> Selection:
        """What was found, with all that is known of how sure it is."""
        k = len(chosen.selection)
        fresh = measured.fresh
        sampling = Sampling(
            table_rows=self._drawn.table_rows,
            searched=len(chosen.y),
            measured=measured.rows,
            fresh=fresh,
            score_errors=read_only(measured.score_errors[:k], float),
            low=read_only(measured.low[:k], float),
            high=read_only(measured.high[:k], float),
            stability=read_only(self._stability(chosen), float),
            half_width=measured.half_width,
            tolerance=None if asked is None else asked.half_width,
            left_out=tuple(chosen.constant.tolist()),
        )
        if not sampling.reached:
            self._warn(sampling)
        return replace(
            chosen.selection,
            scores=read_only(measured.scores[:k], float) if fresh else chosen.selection.scores,
            totals=read_only(measured.totals[:k], float) if fresh else chosen.selection.totals,
            errors=read_only(measured.errors[:k], float),
            sampling=sampling,
        )

    def _stability(self, chosen: _Chosen) -> Floats:
        found = chosen.selection.indices
        if len(chosen.y) < QUARTERS * checks.MIN_ROWS or len(found) == 0:
            return np.full(len(found), np.nan)
        times = np.zeros(len(found))
        for i in range(QUARTERS):
            X, y = chosen.X[i::QUARTERS], chosen.y[i::QUARTERS]
            if not _is_constant(y) and len(constant_columns(X)) < X.shape[1]:
                times += np.isin(found, self._run(self._search, X, y)[0].indices)
        return times / QUARTERS

    def _warn(self, sampling: Sampling) -> None:
        if sampling.rows >= sampling.table_rows:
            remedy = "the table has no more rows"
        elif sampling.rows < self._drawn.count:
            remedy = "allow more rows by Tolerance(most_rows=...)"
        else:
            remedy = "no more were kept of what came in pieces; pass an array (mapped to memory), or fewer columns"
        known = f"T is known to ± {sampling.half_width:.2g}"
        if not np.isfinite(sampling.half_width):
            known = "How exactly T is known can't be said where y hardly varies"
        asked = f"± {sampling.tolerance:g} asked for"
        warn(f"{known}: not to the {asked}, from {sampling.rows:,} rows; {remedy}.", ToleranceWarning)


def _is_constant(y: NDArray[Any]) -> bool:
    return bool(y.max() == y.min())
