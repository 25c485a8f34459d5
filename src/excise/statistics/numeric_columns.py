"""Making numbers of a table's columns: dates in days, categories as 0/1 columns, with a word on each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from excise.errors import InputError

MOST_LEVELS = 20  # a text column with more different values is taken for an identifier or free text
SHOWN = 60  # characters of a value in a message
UNITS_A_DAY = {"s": 24 * 3600, "ms": 24 * 3600 * 10**3, "us": 24 * 3600 * 10**6, "ns": 24 * 3600 * 10**9}


def numeric_columns(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The columns of a frame without gaps as numbers."""
    ready = np.array([types.is_numeric_dtype(kind) for kind in frame.dtypes], dtype=bool)  # booleans among them
    parts: dict[str, pd.DataFrame] = {}
    for name in frame.columns[~ready]:
        column = frame[name]
        if types.is_datetime64_any_dtype(column):
            parts[name] = _days(column).to_frame(name)
            notes.append(f"{name} is a date: counted in days.")
        elif types.infer_dtype(column) == "decimal":
            parts[name] = column.astype(float).to_frame(name)
        else:
            parts[name] = _levels(column, notes)
    return _in_order(frame, ready, parts)


def _in_order(frame: pd.DataFrame, ready: NDArray[np.bool_], parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """All columns in the order of the table, runs of numbers taken as they stand: tables may be very wide."""
    found: list[pd.DataFrame] = []
    begin = 0
    for place in [*np.flatnonzero(~ready).tolist(), len(ready)]:
        if place > begin:
            found.append(_floats(frame.iloc[:, begin:place]))
        if place < len(ready):
            found.append(parts[frame.columns[place]])
        begin = place + 1
    return pd.concat(found, axis=1) if found else pd.DataFrame(index=frame.index)


def _floats(columns: pd.DataFrame) -> pd.DataFrame:
    for name, kind in columns.dtypes.items():
        if types.is_complex_dtype(kind):
            raise InputError(f"The column {name!r} is complex numbers; pass its parts as columns of their own.")
    return columns.astype(float)


def _days(column: pd.Series) -> pd.Series:
    """Dates as days since 1970, in whichever unit they are kept: nanoseconds end in the year 2262."""
    there = column.dt.tz_localize(None)
    unit, _ = np.datetime_data(there.dtype)
    days: pd.Series = there.astype("int64") / UNITS_A_DAY[unit]
    return days


def _levels(column: pd.Series, notes: list[str]) -> pd.DataFrame:
    """A categorical column as one 0/1 column per level; for two levels one column says it all."""
    try:
        text = column.astype(str)
    except UnicodeDecodeError:  # bytes that are no text
        text = column.map(str)
    levels = sorted(text.unique())
    if len(levels) > MOST_LEVELS:
        notes.append(f"Left out {column.name}: text with {len(levels):,} different values (at most {MOST_LEVELS}).")
        return pd.DataFrame(index=column.index)
    shown = levels[1:] if len(levels) == 2 else levels
    names = [f"{column.name}={level}" for level in shown]
    notes.append(f"{column.name} is categorical ({len(levels)} levels): taken as 0/1 columns {', '.join(names)}.")
    return pd.DataFrame({name: (text == level).astype(float) for name, level in zip(names, shown, strict=True)})


def kind(column: pd.Series) -> str:
    """What a column that is not numbers is, for people."""
    if types.is_datetime64_any_dtype(column):
        return "dates"
    if types.is_complex_dtype(column):
        return "complex numbers"
    values = column.dropna()
    if len(values) == 0:
        return "empty"
    first = str(values.iloc[0])
    return f"text (such as {first[:SHOWN] + '…' * (len(first) > SHOWN)!r})"
