"""The search inside FOCI: what would each remaining column add to the columns chosen so far?

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
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from excise.statistics._compiled import compiled
from excise.statistics._neighbors import Floats, Ints, as_floats, mix, nearest, one_cell, scaled
from excise.statistics._scan import LANES, STRIDE, sum_over_cells, sums_on_line, sums_over_rows

CHUNK = 2**17  # values that a thread copies and sorts at a time
SMALL = 2**15  # a table with fewer values is not worth threads
LIST_FACTOR, LIST_EXTRA = 4, 24  # how long the neighbour lists are, twice that for many columns
MANY_COLUMNS = 2000
FEW_COLUMNS = 100  # for so few, long lists and a mark to prune by cost more than they save
LIST_BYTES = 2**26  # neighbour lists are made for as many rows at a time as fit in here

Advance = Callable[[float], object]
Lists = tuple[NDArray[np.int32], Floats, Floats]


class Candidates:
    """The standardised columns of a table, in a layout that the scans read in order.

    ``rank`` is R, the max ranks of y; ``seed`` is what draws among equally near rows are made from.
    """

    def __init__(
        self, X: NDArray[Any], rank: Ints, seed: np.uint64, *, standardize: bool, n_jobs: int, advance: Advance
    ) -> None:
        n, p = X.shape
        self.shape = n, p
        self.rank = rank.astype(np.float64)  # whole numbers, and so are their sums: exact in any order
        self.chosen = np.zeros(p, dtype=bool)
        self._seed = seed
        self.points = np.empty((n, 0))
        self.cells = one_cell(n)
        self._pool_size = n_jobs
        self._list_length = partial(_list_length, columns=p)
        self._advance = advance
        self._tiles = np.zeros((-(-p // LANES), n, LANES))
        # the rows sorted by each column, equal values by row
        self._orders = np.zeros((len(self._tiles) * LANES, n), dtype=np.uint16 if n <= 2**16 else np.int32)
        self._load(X, standardize)

    def column(self, c: int) -> Floats:
        """Column c as it is searched: standardised, if asked for."""
        return np.ascontiguousarray(self._tiles[c // LANES, :, c % LANES])

    def first_sums(self) -> Floats:
        """Σ min(R_i, R_M(i)) of each column by itself."""
        key = self._key()

        def sum_up(low: int, high: int) -> Any:
            columns = np.stack([self.column(c) for c in range(low, high)])
            orders = np.argsort(columns, axis=1)
            sums = sums_on_line(columns, orders, key, self.rank)
            self._orders[low:high] = orders
            return sums

        return np.concatenate(self._map(sum_up))

    def add(self, c: int) -> None:
        """Choose column c: from now on ``sums`` is about what the others add to it."""
        column = self.column(c)
        self.chosen[c] = True
        self.points = np.column_stack((self.points, column))
        self.cells = self.cells.split_by(column)

    def sums(self, favorite: int) -> Floats:
        """Σ min(R_i, R_M(i)) of each column together with those chosen.

        The largest among the columns not chosen yet is exact. A column that can't come up to the one found so far is
        given up, and gets a bound that is less; ``favorite``, which is likely to do well, sets the first mark.
        """
        if self.cells.all_distinct:
            return self._sums_over_rows(favorite)
        return self._sums_over_cells()

    def _load(self, X: NDArray[Any], standardize: bool) -> None:
        exponent = None if standardize else np.frexp(_largest(X))[1]

        def load(low: int, high: int) -> None:
            block = scaled(as_floats(X[:, low:high]), exponent)
            if standardize:
                # distances need no centring, but far from 0 it saves digits; a mean would be led astray by outliers
                block -= np.median(block[:: max(1, len(block) // 9)], axis=0)
                block /= block.std(axis=0)
            for tile in range(low // LANES, -(-high // LANES)):
                part = block[:, tile * LANES - low : (tile + 1) * LANES - low]
                self._tiles[tile, :, : part.shape[1]] = part

        self._map(load)

    def _sums_over_rows(self, favorite: int) -> Floats:
        p = self.shape[1]
        total = np.zeros(len(self._tiles) * LANES)
        key = self._key()
        mark = np.zeros(1)
        if p > FEW_COLUMNS:
            neighbor = nearest(np.column_stack((self.points, self.column(favorite))), key, self._pool_size)
            mark[0] = np.minimum(self.rank, self.rank[neighbor]).sum()
        # min(R_i, R_M(i)) falls short of R_i by R_i²/2n where x tells nothing, so rows of high rank decide soonest
        visit = np.argsort(-self.rank, kind="stable")
        rest = self.rank.sum() - np.cumsum(self.rank[visit])
        for block, lists in neighbor_lists(self.points, visit, self._list_length, self._pool_size):

            def scan(low: int, high: int, block: slice = block, lists: Lists = lists) -> None:
                tiles = slice(low // LANES, -(-high // LANES))
                lanes = slice(tiles.start * LANES, tiles.stop * LANES)
                sums_over_rows(
                    self._tiles[tiles],
                    self._orders[lanes],
                    key,
                    visit[block],
                    *lists,
                    self.points,
                    self.rank,
                    rest[block],
                    mark,
                    total[lanes],
                )
                if block.stop == len(visit):
                    mark[0] = max(mark[0], total[low:high].max(initial=0.0, where=~self.chosen[low:high]))

            self._map(scan, share=len(visit[block]) / len(visit))
        return total[:p]

    def _sums_over_cells(self) -> Floats:
        total = np.zeros(self.shape[1])
        cells, key = self.cells, self._key()
        centers = self.points[cells.members[cells.start[:-1]]]
        for block, lists in neighbor_lists(centers, np.arange(cells.count), self._list_length, self._pool_size):

            def scan(low: int, high: int, block: slice = block, lists: Lists = lists) -> None:
                for c in range(low, high):
                    total[c] += sum_over_cells(
                        self.column(c),
                        self._orders[c],
                        key,
                        cells.of,
                        cells.start,
                        block.start,
                        *lists,
                        centers,
                        self.rank,
                    )

            self._map(scan, share=(block.stop - block.start) / cells.count)
        return total

    def _key(self) -> np.uint64:
        """What this step's draws are made from: the same for all columns, so that their order does not matter."""
        return np.uint64(mix(self._seed, self.points.shape[1]))

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


def _largest(X: NDArray[Any], width: int = 256) -> float:
    return max(float(np.abs(as_floats(X[:, low : low + width])).max()) for low in range(0, X.shape[1], width))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list_length(n: int, d: int, columns: int) -> int:
    """A scan looks at about n^(1/(d+1)) neighbours: 1,000 rows need 35 at d=1, 14 at d=2, 6 at d=4; outliers more."""
    looked_at = LIST_FACTOR * n ** (1 / (d + 1))
    if columns <= FEW_COLUMNS:
        looked_at /= 2
    return (1 if columns < MANY_COLUMNS else 2) * (round(looked_at) + LIST_EXTRA)


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
