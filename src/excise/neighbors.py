"""Exact nearest neighbours, and who is chosen when several are equally near.

The coefficients of this package ask for the nearest *other* row of every row, drawn uniformly when there are several
(the rule of CRAN FOCI). All of that randomness comes from one shuffle: the caller puts the rows in random order, and
then **the tied row that follows i cyclically is its neighbour**. By symmetry each tied row is equally likely to be the
next one, the answer does not depend on the order in which a search meets the candidates (so threads, chunks and
algorithms all agree), and exact duplicates, however many, cost one look-up instead of a list of all of them.

Squared distances that differ by less than ``TIE``, relatively, are a tie: decimals such as 0.1, 0.2, 0.3 are equally
spaced for a person, if not in binary, and rescaling a column must not change its ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE = 1e-9
"""Relative difference of squared distances up to which two neighbours are equally near."""

compiled = njit(nogil=True, cache=True, error_model="numpy")


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


def _cells(keys: Ints) -> Cells:
    _, of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    start = np.concatenate(([0], np.cumsum(sizes)))
    return Cells(of=of, start=start, members=np.argsort(of, kind="stable"))


def nearest(points: Floats) -> Ints:
    """Index of the nearest other row of each row; rows are in random order, see the module's tie rule.

    >>> nearest(np.array([[0.0], [2.0], [3.0]])).tolist()
    [1, 2, 1]
    """
    if points.shape[1] == 1:
        line = np.ascontiguousarray(points[:, 0])
        found: Ints = nearest_on_line(line, np.argsort(line))
        return found
    cells = one_cell(len(points))
    for column in points.T:
        cells = cells.split_by(column)
    neighbor = _next_twin(cells.of, cells.start, cells.members)
    _find_for_the_lonely(points, cells, neighbor)
    return neighbor


def scaled(block: Floats, exponent: int | Ints | None = None) -> Floats:
    """The block times a power of two, so that squares neither overflow nor vanish; ties and order stay as they are.

    The power is each column's own (which standardising forgets again), or the given one for all.
    """
    if exponent is None:
        exponent = np.frexp(np.abs(block).max(axis=0))[1]
    return np.ldexp(block, -exponent) + 0.0  # + 0.0 turns -0.0, equal but not identical, into 0.0


def _find_for_the_lonely(points: Floats, cells: Cells, neighbor: Ints) -> None:
    """Fill in the neighbours of rows that have no twin, with a tree over the distinct rows."""
    distinct = points[cells.members[cells.start[:-1]]]
    tree = cKDTree(distinct)
    pending = np.flatnonzero(neighbor < 0)
    k = 8  # tree neighbours asked for, including the row itself: grows where even the last one may be tied
    while len(pending):
        k = min(k, cells.count)
        distance, near = tree.query(points[pending], k=np.arange(1, k + 1), workers=-1)
        squared = np.where(near == cells.of[pending, None], np.inf, distance**2)
        reach = squared.min(axis=1) * (1 + TIE)
        settled = (squared[:, -1] > reach) if k < cells.count else np.ones(len(pending), dtype=bool)
        _choose(pending[settled], near[settled], squared[settled] <= reach[settled, None], cells, neighbor)
        pending = pending[~settled]
        k *= 4


def _choose(rows: Ints, near: Ints, tied: NDArray[np.bool_], cells: Cells, neighbor: Ints) -> None:
    _choose_among_cells(rows, near, tied, cells.start, cells.members, neighbor)


@compiled
def _choose_among_cells(rows: Any, near: Any, tied: Any, start: Any, members: Any, neighbor: Any) -> None:
    n = len(members)
    for r in range(len(rows)):
        i = rows[r]
        closest = n
        for t in range(near.shape[1]):
            if tied[r, t]:
                cell = near[r, t]
                j = follower(members, start[cell], start[cell + 1], i)
                closest = min(closest, (j - i) % n)
        neighbor[i] = (i + closest) % n


@compiled
def follower(members: Any, low: int, high: int, i: int) -> Any:
    """First of the ascending ``members[low:high]`` after i, or the very first if none comes after."""
    first, end = low, high
    while low < high:
        middle = (low + high) // 2
        if members[middle] > i:
            high = middle
        else:
            low = middle + 1
    return members[low] if low < end else members[first]


@compiled
def _next_twin(of: Any, start: Any, members: Any) -> Any:
    """The next row of the same cell, or -1 for a row that is alone in it."""
    twin = np.full(len(of), -1, dtype=np.int64)
    for cell in range(len(start) - 1):
        low, high = start[cell], start[cell + 1]
        if high - low > 1:
            for at in range(low, high):
                twin[members[at]] = members[at + 1] if at + 1 < high else members[low]
    return twin


@compiled
def nearest_on_line(line: Any, order: Any) -> Any:
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
                neighbor[order[at]] = order[at + 1] if at + 1 < high else order[low]
            continue
        i = order[low]
        left = (line[i] - line[order[low - 1]]) ** 2 if run > 0 else np.inf
        right = (line[order[high]] - line[i]) ** 2 if run + 1 < runs else np.inf
        reach = min(left, right) * (1 + TIE)
        closest = n
        if left <= reach:
            closest = (follower(order, run_start[run - 1], low, i) - i) % n
        if right <= reach:
            closest = min(closest, (follower(order, high, run_start[run + 2], i) - i) % n)
        neighbor[i] = (i + closest) % n
    return neighbor
