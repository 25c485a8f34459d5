"""A sum over rows that rows can be left out of, as exact after the thousandth as before the first.

Subtracting what a row had added loses digits where the row had added most of the sum, and a little each time. So
nothing is subtracted here: the sum is kept as a binary tree of partial sums, and a leaf that loses a row is summed
anew, with the few nodes above it. What comes out depends on which rows are gone alone, not on the order of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from excise.estimators.kept import NO_ROWS, Rows

FEWEST = 256  # rows of a leaf, below which the calls cost more than the sums
SHARE = 4  # the tree takes at most this part of the memory that the data take


class Summary(Protocol):
    """What a set of rows comes to, and how that of two sets gives that of both."""

    def __add__(self, other: Self, /) -> Self: ...


S = TypeVar("S", bound=Summary)


class Sums(Generic[S]):
    """The summary of some rows, from which any of them can be left out.

    Args:
        rows: Positions, sorted.
        summary: What some of them come to.
        leaf: How many rows are summed anew where one is left out.
    """

    def __init__(self, rows: Rows, summary: Callable[[Rows], S], leaf: int = FEWEST) -> None:
        self._leaves = np.split(rows, np.arange(leaf, len(rows), leaf))
        self._first = np.array([leaf[0] for leaf in self._leaves if len(leaf)], dtype=np.intp)
        self._summary = summary
        self._gone = NO_ROWS
        self._levels: list[list[S | None]] = [[self._sum(leaf) for leaf in self._leaves]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            self._levels.append([_pair(below, i) for i in range((len(below) + 1) // 2)])

    def without(self, gone: Rows) -> S | None:
        """The summary of the rows that are not among these; None if there are none.

        >>> odd = Sums(np.array([1, 3, 5, 7]), lambda rows: int(rows.sum()), leaf=2)
        >>> odd.without(np.array([3])), odd.without(np.array([1, 3, 5, 7])), odd.without(np.array([2]))
        (13, None, 16)
        """
        changed = np.setxor1d(gone, self._gone, assume_unique=True)
        touched = np.unique(np.searchsorted(self._first, changed, side="right") - 1)
        fresh = {i: self._sum(np.setdiff1d(self._leaves[i], gone, assume_unique=True)) for i in touched if i >= 0}
        self._gone = gone.copy()
        for i, summary in fresh.items():
            self._levels[0][i] = summary
        nodes = set(fresh)
        for below, level in pairwise(self._levels):
            nodes = {i // 2 for i in nodes}
            for i in nodes:
                level[i] = _pair(below, i)
        return self._levels[-1][0]

    def _sum(self, rows: Rows) -> S | None:
        return self._summary(rows) if len(rows) else None


def leaf_rows(summary_cells: int, row_cells: float) -> int:
    """How many rows make a leaf, for a tree that is small beside the data.

    >>> leaf_rows(summary_cells=100 * 100, row_cells=100)
    800
    """
    return max(FEWEST, int(2 * SHARE * summary_cells / max(row_cells, 1)))


def _pair(below: list[S | None], i: int) -> S | None:
    """The sum of the two nodes below a node, of which the second may not exist."""
    left, right = below[2 * i], below[2 * i + 1] if 2 * i + 1 < len(below) else None
    if left is None or right is None:
        return right if left is None else left
    return left + right
