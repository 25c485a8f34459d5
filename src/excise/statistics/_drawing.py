"""Rows drawn at random from a table that need not fit in memory: an array on disk, or pieces that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from excise._support import checks
from excise.errors import InputError
from excise.statistics._neighbors import Floats, Ints
from excise.statistics._pieces import Piece, piece_of, rows_of
from excise.statistics._search import Names

Rows = tuple[NDArray[Any], NDArray[Any]]
ROOM = 1.25  # as many times the rows that are kept may be there before the highest numbers are cleared out


Most = Callable[[int], int]
"""How many rows of so many columns are wanted at the most."""


class Drawn(Protocol):
    """Rows of a table that can be read in random order, each once."""

    table_rows: int
    count: int
    """Rows that can be read, at most those of the table."""
    width: int
    names: Names

    def read(self, rows: slice, columns: Ints | None = None) -> Rows:
        """Some of the rows, and their y."""
        ...

    def everything(self) -> Rows:
        """All of them, in the order of the table."""
        ...


class FromArrays:
    """Rows of an array, a memory-mapped file, a data frame: of anything with a shape that gives rows by number."""

    def __init__(self, X: Any, y: Any, most: Most, rng: np.random.Generator) -> None:
        self._X = X if hasattr(X, "shape") else checks.numeric(X, "X")
        self._y = y if hasattr(y, "shape") else checks.numeric(y, "y")
        if len(self._X.shape) not in (1, 2) or 0 in self._X.shape:
            raise InputError(f"X must be rows × columns, but has shape {tuple(self._X.shape)}.")
        if len(self._y.shape) == 0:
            raise InputError(f"y must be one column, but is {y!r}; only where X comes in pieces it may be a name.")
        self.table_rows = checks.same_length(X=self._X, y=self._y)
        self.width = 1 if len(self._X.shape) == 1 else int(self._X.shape[1])
        self.names = checks.column_names(X)
        self.count = min(most(self.width), self.table_rows)
        self._rng = rng

    def read(self, rows: slice, columns: Ints | None = None) -> Rows:
        """Some of the rows, and their y."""
        wanted = self._order[rows]
        order = np.argsort(wanted)  # read as they lie in the file
        X, y = self._at(wanted[order])
        back = np.argsort(order)
        return (X if columns is None else X[:, columns])[back], y[back]

    def everything(self) -> Rows:
        """All of them, in the order of the table."""
        return self._at(np.arange(self.table_rows))

    @cached_property
    def _order(self) -> Ints:
        return some_of(self.table_rows, self.count, checks.apart_from(self._rng))

    def _at(self, rows: Ints) -> Rows:
        X = checks.matrix(rows_of(self._X, rows), "the sample of X")
        return X, checks.vector(rows_of(self._y, rows), "the sample of y")


class FromSample:
    """Rows that were drawn before, and are in random order."""

    def __init__(self, X: Any, y: Any, table_rows: int) -> None:
        self.names = checks.column_names(X)
        self._X, self._y = checks.matrix(X, "X"), checks.vector(y, "y")
        self.count, self.table_rows = checks.same_length(X=self._X, y=self._y), table_rows
        self.width = self._X.shape[1]

    def read(self, rows: slice, columns: Ints | None = None) -> Rows:
        """Some of the rows, and their y."""
        return self._X[rows] if columns is None else self._X[rows, columns], self._y[rows]

    def everything(self) -> Rows:
        """All of them."""
        return self._X, self._y


class FromPieces:
    """Rows of pieces that go by once: those with the lowest random numbers are kept, one number a row."""

    def __init__(self, pieces: Iterator[Any], y: Any, most: Most, rng: np.random.Generator) -> None:
        first: Piece | None = None
        kept = Kept(0)
        rng = checks.apart_from(rng)
        self.table_rows = 0
        for at, given in enumerate(pieces):
            piece = piece_of(given, y, at)
            if first is None:
                first = piece
                kept.most = most(piece.width)
            elif (piece.names, piece.width) != (first.names, first.width):
                raise InputError(f"Piece {at} of X has other columns than the first; give all the same ones.")
            self.table_rows += piece.rows
            kept.look_at(rng.random(piece.rows), piece.take)
        if first is None or self.table_rows == 0:
            raise InputError("X came in no pieces with rows; begin the iterator anew, it may have been used up.")
        self.names, self.width = first.names, first.width
        numbers, (self._X, self._y) = kept.rows()
        self._order = np.argsort(numbers)
        self.count = len(numbers)

    def read(self, rows: slice, columns: Ints | None = None) -> Rows:
        """Some of the rows, and their y."""
        at = self._order[rows]
        return self._checked(self._X[at] if columns is None else self._X[at][:, columns], self._y[at])

    def everything(self) -> Rows:
        """All of them, in the order of the table."""
        return self._checked(self._X, self._y)

    def _checked(self, X: NDArray[Any], y: NDArray[Any]) -> Rows:
        return checks.matrix(X, "the sample of X"), checks.vector(y, "the sample of y")


class Kept:
    """The rows with the lowest random numbers so far, in the order they came; between two clearings a few more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._below = np.inf
        self._parts: list[tuple[Any, ...]] = []

    def look_at(self, numbers: Floats, take: Callable[[Ints], tuple[Any, ...]]) -> None:
        """Take the rows of a piece whose number is low enough: arrays or frames."""
        low = np.flatnonzero(numbers < self._below)
        if len(low):
            self._parts.append((numbers[low], *take(low)))
        if sum(len(part[0]) for part in self._parts) > ROOM * self.most:
            self.rows()

    def rows(self) -> tuple[Floats, tuple[Any, ...]]:
        """The numbers of the rows, and what was taken of them."""
        found = [_joined(some) for some in zip(*self._parts, strict=True)]
        self._parts = []
        if len(found[0]) > self.most:
            keep = np.sort(np.argpartition(found[0], self.most)[: self.most])
            found = [rows_of(table, keep) for table in found]
            self._below = float(found[0].max())
        self._parts = [tuple(found)]
        return found[0], tuple(found[1:])


def _joined(tables: Sequence[Any]) -> Any:
    if hasattr(tables[0], "iloc"):
        import pandas

        return pandas.concat(tables, ignore_index=True)
    return np.concatenate(tables)


def some_of(n: int, count: int, rng: np.random.Generator) -> Ints:
    """``count`` different numbers below n, in random order, without a list of all n unless they are most of it."""
    if 2 * count > n:
        return rng.permutation(n)[:count]
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        drawn = np.concatenate((found, rng.integers(0, n, count - len(found) + 16)))
        found = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return found[:count]
