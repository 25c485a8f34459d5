"""A piece of a table that goes by: a pair (X, y), or a table with y as one of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise._support import checks
from excise.errors import InputError
from excise.statistics._neighbors import Ints
from excise.statistics._search import Names


@dataclass(frozen=True)
class Piece:
    """Some rows of a table; nothing is copied before it is known which of them are wanted."""

    table: Any
    y: Any
    """The values of y, where the table does not have them."""
    place: int | None
    """Which column of the table is y, where it has it."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.table.shape[0])

    @property
    def width(self) -> int:
        """Columns without y."""
        columns = 1 if len(self.table.shape) == 1 else int(self.table.shape[1])
        return columns - (self.place is not None)

    @property
    def names(self) -> Names:
        """Names of the columns without y."""
        names = checks.column_names(self.table)
        if names is None or self.place is None:
            return names
        return names[: self.place] + names[self.place + 1 :]

    def take(self, rows: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        """X and y of some of the rows."""
        X = rows_of(self.table, rows)
        if self.place is None:
            values = checks.numeric(X, "X")
            y = checks.numeric(rows_of(self.y, rows), "y")
            return values[:, None] if values.ndim == 1 else values, y[:, 0] if y.ndim == 2 else y
        if hasattr(X, "iloc"):
            rest = X.drop(columns=X.columns[self.place])
            return checks.numeric(rest, "X"), checks.numeric(X.iloc[:, self.place], "y")
        return np.delete(X, self.place, axis=1), X[:, self.place]


def piece_of(given: Any, y: Any, number: int) -> Piece:
    """What an iterator gave as a piece."""
    if y is None:
        return _pair(given, number)
    if isinstance(y, bool) or not isinstance(y, str | int | np.integer):
        raise InputError(
            "X comes in pieces, so y must be the name or the number of its column in them, or None where each piece "
            f"is a pair (X, y); it is {type(y).__name__}."
        )
    if hasattr(given, "to_pandas"):  # of pyarrow or polars
        given = given.to_pandas()
    table = given if hasattr(given, "iloc") else checks.numeric(given, "X")
    if len(table.shape) != 2 or table.shape[1] < 2:
        raise InputError(f"Piece {number} of X must be rows × columns, y among them, but has shape {table.shape}.")
    return Piece(table, None, _place(table, y))


def rows_of(table: Any, rows: Ints) -> Any:
    """The rows with these numbers."""
    return table.iloc[rows] if hasattr(table, "iloc") else table[rows]


def _pair(given: Any, number: int) -> Piece:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(f"Piece {number} of X is no pair (X, y); give pairs, or the name of y's column as y.")
    X, y = (part if hasattr(part, "shape") else checks.numeric(part, "X") for part in given)
    checks.same_length(X=X, y=y)
    if len(X.shape) not in (1, 2) or len(y.shape) not in (1, 2) or (len(y.shape) == 2 and y.shape[1] != 1):
        raise InputError(f"Piece {number} must be rows × columns and one column, but has {X.shape} and {y.shape}.")
    return Piece(X, y, None)


def _place(table: Any, y: Any) -> int:
    columns = int(table.shape[1])
    if isinstance(y, str):
        names = checks.column_names(table)
        if names is None:
            raise InputError(f"y={y!r} names a column, but the pieces of X have no names; pass its number.")
        if names.count(y) != 1:
            raise InputError(f"The pieces of X have no one column {y!r}; they have {', '.join(names[:10])}.")
        return names.index(y)
    if not -columns <= int(y) < columns:
        raise InputError(f"y={y} is no column of the pieces of X, which have {columns}.")
    return int(y) % columns
