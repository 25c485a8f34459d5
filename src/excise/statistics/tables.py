"""A table as the search wants it: a target and columns of numbers, with a word on everything that was changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from excise.errors import InputError
from excise.statistics.numeric_columns import kind, numeric_columns
from excise.statistics.table_files import read, read_rows, read_whole

__all__ = ["Table", "prepare", "read", "read_rows", "read_whole"]

NAMED = 10  # columns that a note names; of more it says how many


@dataclass(frozen=True)
class Table:
    """A target and the numeric columns that may tell something about it."""

    columns: pd.DataFrame
    target: pd.Series
    notes: tuple[str, ...]
    """What was done to the table, in sentences."""
    of_rows: int | None = None
    """How many rows there are, where these are some of them in random order."""


class Parts(Protocol):
    """A table of which some columns at a time are in memory."""

    names: list[str]
    rows: int

    def column(self, name: str) -> pd.Series:
        """One of the columns."""
        ...

    def frames(self) -> Iterator[pd.DataFrame]:
        """All columns from left to right, some at a time, as often as asked."""
        ...


class _Whole:
    """A frame that is in memory anyway."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame.rename(columns=str)
        self.names = list(self._frame.columns)
        self.rows = len(frame)

    def column(self, name: str) -> pd.Series:
        return self._frame[name]

    def frames(self) -> Iterator[pd.DataFrame]:
        yield self._frame


def prepare(table: pd.DataFrame | Parts, target: str, *, of_rows: int | None = None) -> Table:
    """Split off the target, make every other column numeric, and leave out what can't be used.

    ``of_rows`` says how many rows there are, where these are some of them in random order.
    """
    parts: Parts = _Whole(table) if isinstance(table, pd.DataFrame) else table
    _check(parts, target)
    notes: list[str] = []
    if of_rows is not None:
        notes.append(f"Read {parts.rows:,} of {of_rows:,} rows, drawn at random; what is said here is about these.")
    gaps = _Gaps(parts, target, notes)
    found = _Columns(int(gaps.complete.sum()))
    for frame in gaps.filled(parts):
        if target in frame:
            values = frame[target]
            if values.nunique() < 2:
                raise InputError(f"The target {target!r} is always {values.iloc[0]}, so nothing can tell it.")
            y = values.astype(float).reset_index(drop=True)
            frame = frame.drop(columns=target)
        found.add(numeric_columns(frame, notes))
    columns = found.frame(notes)
    if columns.shape[1] == 0:
        raise InputError(f"The table has no usable column besides {target!r}. " + " ".join(notes))
    return Table(columns=columns, target=y, notes=tuple(notes), of_rows=of_rows)


def _check(parts: Parts, target: str) -> None:
    names = pd.Index(parts.names)
    if target not in names:
        by_lower_case = {name.lower(): name for name in names}
        close = difflib.get_close_matches(target.lower(), by_lower_case, n=1, cutoff=0.5)
        hint = f" Did you mean {by_lower_case[close[0]]!r}?" if close else f" It has: {', '.join(names[:10])}."
        raise InputError(f"The table has no column {target!r}.{hint}")
    if names.duplicated().any():
        raise InputError(f"The table has two columns named {names[names.duplicated()][0]!r}; rename one.")
    values = parts.column(target)
    if not types.is_numeric_dtype(values) or types.is_complex_dtype(values):
        raise InputError(
            f"The target {target!r} is {kind(values)}, not numbers; "
            "encode it as numbers whose order means something (0 and 1 for two classes)."
        )
    if parts.rows < 3:
        raise InputError(f"The table has {parts.rows} rows; at least 3 are needed.")


class _Gaps:
    """Which columns are empty, and which rows have a value in all the others."""

    def __init__(self, parts: Parts, target: str, notes: list[str]) -> None:
        self.complete: NDArray[np.bool_] = np.ones(parts.rows, dtype=bool)
        self._empty: list[str] = []
        counts: list[pd.Series] = []
        for frame in parts.frames():
            missing = _without_infinities(frame).isna()
            count = missing.sum()
            empty = (count == parts.rows).to_numpy()
            self._empty += frame.columns[empty].tolist()
            counts.append(count[~empty])
            self.complete &= ~missing.loc[:, ~empty].any(axis=1).to_numpy()
        if target in self._empty:
            raise InputError(f"The target {target!r} has no values at all.")
        if self._empty:
            notes.append(f"Left out, because empty: {_listed(self._empty)}.")
        self._say(pd.concat(counts), notes)

    def filled(self, parts: Parts) -> Iterator[pd.DataFrame]:
        """The columns that are not empty, without the rows that have gaps."""
        for frame in parts.frames():
            some = [name for name in self._empty if name in frame.columns]
            filled = _without_infinities(frame.drop(columns=some) if some else frame)
            yield filled if self.complete.all() else filled[self.complete]

    def _say(self, counts: pd.Series, notes: list[str]) -> None:
        left = int(self.complete.sum())
        missing = len(self.complete) - left
        if missing:
            worst = counts.idxmax()
            if left < 3:
                raise InputError(
                    f"Only {left} rows have a value in every column; fill in or drop the columns with gaps first, "
                    f"beginning with {worst!r}."
                )
            notes.append(
                f"Left out {missing:,} of {len(self.complete):,} rows, because a value is missing (most often {worst})."
            )


def _without_infinities(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.replace([np.inf, -np.inf], np.nan)


class _Columns:
    """One array that columns are added to; growing it moves no values."""

    def __init__(self, rows: int) -> None:
        self._values = np.empty((0, rows))
        self._names: list[str] = []
        self._seen: list[str] = []
        self._constant: list[str] = []

    def add(self, columns: pd.DataFrame) -> None:
        """Take those that are not always the same."""
        values = columns.to_numpy(dtype=float).T
        same = (values == values[:, :1]).all(axis=1)
        self._seen += columns.columns.tolist()
        self._constant += columns.columns[same].tolist()
        kept = columns.columns[~same].tolist()
        begin = len(self._names)
        self._values.resize((begin + len(kept), self._values.shape[1]), refcheck=False)
        self._values[begin:] = values[~same] if same.any() else values
        self._names += kept

    def frame(self, notes: list[str]) -> pd.DataFrame:
        """All that were taken; the others are said."""
        seen = pd.Index(self._seen)
        if seen.duplicated().any():
            twice = seen[seen.duplicated()][0]
            raise InputError(f"The levels of a text column make a second column named {twice!r}; rename one.")
        if self._constant:
            notes.append(f"Left out, because always the same: {_listed(self._constant)}.")
        return pd.DataFrame(self._values.T, columns=self._names, copy=False)


def _listed(names: list[Any]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"
