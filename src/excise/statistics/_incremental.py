"""A step of the search inside FOCI: what would each remaining column add to the columns chosen so far?

Candidates are compared by Σ min(R_i, R_M(i)) alone, where M(i) is the nearest neighbour of row i in the space of the
chosen columns S and the candidate x; everything else in T is common to all of them. Three ideas make that fast while
every neighbour stays exact (``neighbors`` has the tie rule):

1. The first step is one-dimensional: one sort per column.
2. Later, d(i, j) = d_S(i, j) + (x_i - x_j)², and the part in S is the same for all candidates. So each row gets its
   other rows listed by d_S once per step; a candidate scans the list, keeps the best d, and stops at the first
   d_S beyond it. The list is cut where few scans get to; a scan that does goes along the candidate instead.
3. Eight candidates share one scan, in vector registers, and are given up together once they can't win.

Where rows coincide in S (discrete columns), the same is done with cells of equal rows instead of single rows, each
sorted by the candidate's value. The compiled loops are in ``scan``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from excise.statistics._compiled import compiled
from excise.statistics._neighbors import Cells, Floats, Ints, as_floats, scaled
from excise.statistics._scan import LANES, STRIDE, sum_over_cells, sums_on_line, sums_over_rows

CHUNK = 2**17  # values that a thread copies and sorts at a time
SMALL = 2**15  # a table with fewer values is not worth threads
LIST_FACTOR, LIST_EXTRA = 4, 24  # how long the neighbour lists are, twice that for many columns
MANY_COLUMNS, MANY_ROWS = 2000, 2**12
FEW_COLUMNS, FEW_ROWS = 100, 2**14  # for so few, long lists and a mark to prune by cost more than they save
LIST_BYTES = 2**26  # neighbour lists are made for as many rows at a time as fit in here

Advance = Callable[[float], object]
Lists = tuple[NDArray[np.int32], Floats, Floats]


def no_advance(_: float) -> None:
    """Where nobody looks at a bar."""


@dataclass(frozen=True)
class Step:
    """What a step of the search asks of every column: its sum together with those chosen so far."""

    rank: Floats
    key: np.uint64
    """What this step's draws are made from: the same for all columns, so that their order does not matter."""
    points: Floats
    """The chosen columns."""
    cells: Cells
    chosen: NDArray[np.bool_]
    mark: Floats
    """One number: a sum that a column reaches; one that can't is given up. It rises as better columns are found."""

    def of(self, columns: slice) -> Step:
        """The same for some of the columns."""
        return replace(self, chosen=self.chosen[columns])


class Columns:
    """Standardised columns of a table, in a layout that the scans read in order.

    The arrays may be given, as ``layout`` says.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        n_jobs: int,
        advance: Advance = no_advance,
        tiles: Floats | None = None,
        orders: NDArray[Any] | None = None,
    ) -> None:
        n, p = self.shape = shape
        self._pool_size, self._advance = n_jobs, advance
        self.is_small = p <= LANES or (p <= FEW_COLUMNS and n <= FEW_ROWS)
        self._list_length = partial(_list_length, columns=p, is_small=self.is_small)
        of_tiles, of_orders = layout(n, p)
        self.tiles = np.zeros(*of_tiles) if tiles is None else tiles
        self.orders = np.zeros(*of_orders) if orders is None else orders

    def column(self, c: int) -> Floats:
        """Column c as it is searched: standardised, if asked for."""
        return np.ascontiguousarray(self.tiles[c // LANES, :, c % LANES])

    def load(self, X: NDArray[Any], exponent: int | None) -> None:
        """Take the columns of X times a power of two, or, without one, standardised."""

        def load(low: int, high: int) -> None:
            block = as_floats(X[:, low:high])
            block = standardized(block) if exponent is None else scaled(block, exponent)
            for tile in range(low // LANES, -(-high // LANES)):
                part = block[:, tile * LANES - low : (tile + 1) * LANES - low]
                self.tiles[tile, :, : part.shape[1]] = part

        self._map(load)

    def first_sums(self, rank: Floats, key: np.uint64) -> Floats:
        """Σ min(R_i, R_M(i)) of each column by itself."""

        def sum_up(low: int, high: int) -> Any:
            columns = np.stack([self.column(c) for c in range(low, high)])
            orders = np.argsort(columns, axis=1)
            sums = sums_on_line(columns, orders, key, rank)
            self.orders[low:high] = orders
            return sums

        return np.concatenate(self._map(sum_up))

    def sums(self, step: Step) -> Floats:
        """Σ min(R_i, R_M(i)) of each column together with those chosen.

        The largest among the columns not chosen yet is exact, if it reaches the mark. A column that can't come up to
        the one found so far is given up, and gets a bound that is less.
        """
        return self._sums_over_rows(step) if step.cells.all_distinct else self._sums_over_cells(step)

    def _sums_over_rows(self, step: Step) -> Floats:
        total = np.zeros(len(self.tiles) * LANES)
        rank, mark = step.rank, step.mark
        # min(R_i, R_M(i)) falls short of R_i by R_i²/2n where x tells nothing, so rows of high rank decide soonest
        visit = np.argsort(-rank, kind="stable")
        rest = rank.sum() - np.cumsum(rank[visit])
        for block, lists in neighbor_lists(step.points, visit, self._list_length, self._pool_size):

            def scan(low: int, high: int, block: slice = block, lists: Lists = lists) -> None:
                tiles = slice(low // LANES, -(-high // LANES))
                lanes = slice(tiles.start * LANES, tiles.stop * LANES)
                sums_over_rows(
                    self.tiles[tiles],
                    self.orders[lanes],
                    step.key,
                    visit[block],
                    *lists,
                    step.points,
                    rank,
                    rest[block],
                    mark,
                    total[lanes],
                )
                if block.stop == len(visit):
                    mark[0] = max(mark[0], total[low:high].max(initial=0.0, where=~step.chosen[low:high]))

            self._map(scan, share=len(visit[block]) / len(visit))
        return total[: self.shape[1]]

    def _sums_over_cells(self, step: Step) -> Floats:
        total = np.zeros(self.shape[1])
        cells = step.cells
        centers = step.points[cells.members[cells.start[:-1]]]
        for block, lists in neighbor_lists(centers, np.arange(cells.count), self._list_length, self._pool_size):

            def scan(low: int, high: int, block: slice = block, lists: Lists = lists) -> None:
                for c in range(low, high):
                    total[c] += sum_over_cells(
                        self.column(c),
                        self.orders[c],
                        step.key,
                        cells.of,
                        cells.start,
                        block.start,
                        *lists,
                        centers,
                        step.rank,
                    )

            self._map(scan, share=(block.stop - block.start) / cells.count)
        return total

    def _map(self, work: Callable[[int, int], Any], share: float = 1.0) -> list[Any]:
        """``work(low, high)`` on ranges of columns, in threads: compiled code and numpy's sorts release the lock."""
        n, p = self.shape
        share_of_each = -(-p // self._pool_size) if n * p > SMALL else p
        width = max(1, min(share_of_each, CHUNK // n) // LANES) * LANES
        lows = range(0, p, width)

        def run(low: int) -> Any:
            result = work(low, min(low + width, p))
            self._advance(share * (min(low + width, p) - low))
            return result

        if self._pool_size == 1 or len(lows) == 1 or n * p <= SMALL:
            return [run(low) for low in lows]
        with ThreadPoolExecutor(self._pool_size) as pool:
            return list(pool.map(run, lows))


Layout = tuple[tuple[int, ...], type]


def layout(n: int, p: int) -> tuple[Layout, Layout]:
    """Shapes and types: the columns eight side by side; and the rows sorted by each column, equal values by row."""
    tiles = -(-p // LANES)
    return ((tiles, n, LANES), np.float64), ((tiles * LANES, n), np.uint16 if n <= 2**16 else np.int32)


def common_exponent(X: NDArray[Any], width: int = 256) -> int:
    """Of the largest value of all columns, so that none overflows when squared."""
    largest = max(float(np.abs(as_floats(X[:, low : low + width])).max()) for low in range(0, X.shape[1], width))
    return int(np.frexp(largest)[1])


def standardized(block: Floats) -> Floats:
    """Columns of standard deviation 1, near 0; a constant one stays constant."""
    block = scaled(block) if block.size else block
    # distances need no centring, but far from 0 it saves digits; a mean would be led astray by outliers
    block -= np.median(block[:: max(1, len(block) // 9)], axis=0)
    spread = block.std(axis=0)
    block /= np.where(spread > 0, spread, 1.0)
    return block


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list_length(n: int, d: int, columns: int, is_small: bool) -> int:
    """A scan looks at about n^(1/(d+1)) neighbours: 1,000 rows need 35 at d=1, 14 at d=2, 6 at d=4; outliers more.

    The more rows there are, the more a scan costs whose list was too short.
    """
    looked_at = LIST_FACTOR * n ** (1 / (d + 1))
    if is_small:
        return round(looked_at / 2) + LIST_EXTRA
    times = 1 if columns < MANY_COLUMNS else 2
    return times * round(looked_at) + (times * LIST_EXTRA if n <= MANY_ROWS else 4 * LIST_EXTRA)


def neighbor_lists(
    points: Floats, visit: Ints, length_for: Callable[[int, int], int], n_jobs: int
) -> Iterator[tuple[slice, Lists]]:
    """For a part of ``visit`` at a time: the other points by distance, the squared distances, and the horizon.

    What a list leaves out lies at the horizon or beyond. The points are distinct.
    """
    n, d = points.shape
    length = min(n - 1, length_for(n, d))
    rows = max(1, LIST_BYTES // (12 * max(length, 1)))
    order = np.argsort(points[:, 0]) if d == 1 else None
    tree = None if d == 1 else cKDTree(points)
    for first in range(0, n, rows):
        block = slice(first, min(first + rows, n))
        who = visit[block]
        near = np.zeros((len(who), -(-length // STRIDE) * STRIDE), dtype=np.int32)
        distance = np.full(near.shape, np.inf)
        if length == 0:  # a single point
            pass
        elif tree is None:
            _list_on_line(points[:, 0], order, who, length, near, distance)
        else:
            _list_others(*tree.query(points[who], k=length + 1, workers=n_jobs), who, near, distance)
        horizon = np.full(len(who), np.inf) if length == n - 1 else distance[:, length - 1].copy()
        yield block, (near, distance, horizon)


@compiled
def _list_others(far: Any, found: Any, who: Any, near: Any, distance: Any) -> None:
    """The tree's answer without the point itself, squared."""
    length = far.shape[1] - 1
    for r in range(len(far)):
        at = 0
        for t in range(length + 1):
            if found[r, t] != who[r] and at < length:
                near[r, at] = found[r, t]
                distance[r, at] = far[r, t] ** 2
                at += 1


@compiled
def _list_on_line(line: Any, order: Any, who: Any, length: int, near: Any, distance: Any) -> None:
    n = len(line)
    position = np.empty(n, dtype=np.int64)
    for at in range(n):
        position[order[at]] = at
    for r in range(len(near)):
        i = who[r]
        left, right = position[i] - 1, position[i] + 1
        for t in range(length):
            to_left = (line[i] - line[order[left]]) ** 2 if left >= 0 else np.inf
            to_right = (line[order[right]] - line[i]) ** 2 if right < n else np.inf
            if to_left <= to_right:
                near[r, t] = order[left]
                distance[r, t] = to_left
                left -= 1
            else:
                near[r, t] = order[right]
                distance[r, t] = to_right
                right += 1
