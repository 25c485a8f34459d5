"""Exact nearest neighbours, and who is chosen when several are equally near.

The coefficients of this package ask for the nearest *other* row of every row, drawn uniformly when there are several
(the rule of CRAN FOCI), and drawn anew in every evaluation: if the draws of one step of FOCI were used again in the
next, the luck of the column that won would stay with it, and the search would go on far too long.

The draws are not taken from a stream but computed from a key, the row and, where needed, the candidate (``mix``), so
that threads, chunks and the order of a search don't change them. A row with twins (equal rows) takes the one that its
number points to, whatever their count; a row without takes the tied row with the smallest number.

Squared distances that differ by less than ``TIE``, relatively, are a tie: decimals such as 0.1, 0.2, 0.3 are equally
spaced for a person, if not in binary, and rescaling a column must not change its ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from excise.statistics._compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE = 1e-9
"""Relative difference of squared distances up to which two neighbours are equally near."""

NOBODY = (np.uint64(2**64 - 1), np.int64(-1))
"""What a draw begins with: a number that any other is below, and no row."""


@compiled
def mix(key: Any, number: Any) -> Any:
    """A random 64-bit number that belongs to (key, number): the finaliser of splitmix64."""
    z = np.uint64(key) + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Cells:
    """The rows grouped by equality: rows with identical values share a cell."""

    of: Ints
    """The cell of each row."""
    start: Ints
    """``members[start[c]:start[c + 1]]`` are the rows of cell c, ascending."""
    members: Ints

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.start) - 1

    @property
    def sizes(self) -> Ints:
        """How many rows each cell has."""
        return np.diff(self.start)

    @property
    def all_distinct(self) -> bool:
        """Whether no two rows are equal."""
        return self.count == len(self.of)

    def split_by(self, column: Floats) -> Cells:
        """Cells of the rows with one more column."""
        codes = np.unique(column, return_inverse=True)[1]
        return _cells(self.of * (int(codes.max()) + 1) + codes)


def one_cell(n: int) -> Cells:
    """All n rows in one cell: nothing distinguishes them yet."""
    return _cells(np.zeros(n, dtype=np.int64))


def cells_of(points: Floats) -> Cells:
    """Cells of the rows of a table."""
    cells = one_cell(len(points))
    for column in points.T:
        cells = cells.split_by(column)
    return cells


def _cells(keys: Ints) -> Cells:
    _, of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    start = np.concatenate(([0], np.cumsum(sizes)))
    return Cells(of=of, start=start, members=np.argsort(of, kind="stable"))


def nearest(points: Floats, key: np.uint64, n_jobs: int = -1) -> Ints:
    """Index of the nearest other row of each row.

    >>> nearest(np.array([[0.0], [2.0], [3.0]]), np.uint64(0)).tolist()
    [1, 2, 1]
    """
    if points.shape[1] == 1:
        line = np.ascontiguousarray(points[:, 0])
        found: Ints = nearest_on_line(line, np.argsort(line), key)
        return found
    cells = cells_of(points)
    neighbor: Ints = _draw_twins(cells.start, cells.members, key)
    _find_for_the_lonely(points, cells, neighbor, key, n_jobs)
    return neighbor


def as_floats(values: NDArray[Any]) -> Floats:
    """The values as float64, up to a shift of each column that keeps large whole numbers apart (2⁶⁰ and 2⁶⁰ + 1)."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        # differences of 64-bit integers, taken modulo 2⁶⁴, can't overflow
        values = values.astype(np.uint64) - values.min(axis=0).astype(np.uint64)
    return values.astype(np.float64)


def scaled(block: Floats, exponent: int | Ints | None = None) -> Floats:
    """The block times a power of two, so that squares neither overflow nor vanish; ties and order stay as they are.

    The power is each column's own (which standardising forgets again), or the given one for all.
    """
    if exponent is None:
        exponent = np.frexp(np.abs(block).max(axis=0))[1]
    return np.ldexp(block, -exponent) + 0.0  # + 0.0 turns -0.0, equal but not identical, into 0.0


def _find_for_the_lonely(points: Floats, cells: Cells, neighbor: Ints, key: np.uint64, n_jobs: int) -> None:
    """Fill in the neighbours of rows that have no twin, with a tree over the distinct rows."""
    distinct = points[cells.members[cells.start[:-1]]]
    tree = cKDTree(distinct)
    pending = np.flatnonzero(neighbor < 0)
    k = 8  # tree neighbours asked for, including the row itself: grows where even the last one may be tied
    while len(pending):
        k = min(k, cells.count)
        distance, near = tree.query(points[pending], k=np.arange(1, k + 1), workers=n_jobs)
        squared = np.where(near == cells.of[pending, None], np.inf, distance**2)
        reach = squared.min(axis=1) * (1 + TIE)
        settled = (squared[:, -1] > reach) if k < cells.count else np.ones(len(pending), dtype=bool)
        tied = squared[settled] <= reach[settled, None]
        _draw_among_cells(pending[settled], near[settled], tied, cells.start, cells.members, key, neighbor)
        pending = pending[~settled]
        k *= 4


@compiled
def _draw_among_cells(rows: Any, near: Any, tied: Any, start: Any, members: Any, key: Any, neighbor: Any) -> None:
    for r in range(len(rows)):
        lowest, drawn = NOBODY
        for t in range(near.shape[1]):
            if tied[r, t]:
                cell = near[r, t]
                lowest, drawn = draw(members, start[cell], start[cell + 1], mix(key, rows[r]), lowest, drawn)
        neighbor[rows[r]] = drawn


@compiled
def draw(members: Any, low: int, high: int, key: Any, lowest: Any, drawn: Any) -> Any:
    """The member with the lowest random number, if lower than that drawn so far; begin with ``NOBODY``."""
    for at in range(low, high):
        number = mix(key, members[at])
        if number < lowest or (number == lowest and members[at] < drawn):
            lowest, drawn = number, np.int64(members[at])
    return lowest, drawn


@compiled
def draw_twin(members: Any, low: int, high: int, at: int, key: Any) -> Any:
    """One of the other ``members[low:high]`` for the one at ``at``."""
    other = low + np.int64(mix(key, members[at]) % np.uint64(high - low - 1))
    return members[other] if other < at else members[other + 1]


@compiled
def _draw_twins(start: Any, members: Any, key: Any) -> Any:
    """A random other row of the same cell, or -1 for a row that is alone in it."""
    twin = np.full(len(members), -1, dtype=np.int64)
    for cell in range(len(start) - 1):
        low, high = start[cell], start[cell + 1]
        if high - low > 1:
            for at in range(low, high):
                twin[members[at]] = draw_twin(members, low, high, at, key)
    return twin


@compiled
def nearest_on_line(line: Any, order: Any, key: Any) -> Any:
    """Nearest neighbours in one dimension, from ``order``, any argsort of ``line`` (sorted further in place)."""
    n = len(line)
    neighbor = np.empty(n, dtype=np.int64)
    run_start = np.empty(n + 1, dtype=np.int64)  # a run: the equal values between two steps of the sorted line
    runs = 0
    for at in range(n):
        if at == 0 or line[order[at]] != line[order[at - 1]]:
            run_start[runs] = at
            runs += 1
    run_start[runs] = n
    for run in range(runs):
        low, high = run_start[run], run_start[run + 1]
        if high - low > 1:
            order[low:high].sort()
    for run in range(runs):
        low, high = run_start[run], run_start[run + 1]
        if high - low > 1:
            for at in range(low, high):
                neighbor[order[at]] = draw_twin(order, low, high, at, key)
            continue
        i = order[low]
        left = line[i] - line[order[low - 1]] if run > 0 else np.inf
        right = line[order[high]] - line[i] if run + 1 < runs else np.inf
        reach = min(left, right) * (1 + TIE / 2)
        lowest, drawn = NOBODY
        if left <= reach:
            lowest, drawn = draw(order, run_start[run - 1], low, mix(key, i), lowest, drawn)
        if right <= reach:
            lowest, drawn = draw(order, high, run_start[run + 2], mix(key, i), lowest, drawn)
        neighbor[i] = drawn
    return neighbor
