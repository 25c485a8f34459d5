"""Reading a table from disk and making numbers of its columns, with a word on everything that was changed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from excise._support.reading import reason, require_regular_file
from excise.errors import InputError, MissingExtraError
from excise.statistics.exponents import has_long_exponents
from excise.statistics.unpacking import OPENERS, refuse_too_large, unpack

MOST_LEVELS = 20  # a text column with more different values is taken for an identifier or free text
PARQUET = {".parquet", ".pq"}
CSV = {".csv", ".tsv", ".txt", *OPENERS}
MOST_COLUMNS = 200_000
SHOWN = 60  # characters of a value in a message
LONGEST_LINE = 64 * 2**20
NAMED = 10  # columns that a note names; of more it says how many
FloatPrecision = Literal["high", "round_trip"]
UNITS_A_DAY = {"s": 24 * 3600, "ms": 24 * 3600 * 10**3, "us": 24 * 3600 * 10**6, "ns": 24 * 3600 * 10**9}


@dataclass(frozen=True)
class Table:
    """A target and the numeric columns that may tell something about it."""

    columns: pd.DataFrame
    target: pd.Series
    notes: tuple[str, ...]
    """What was done to the table, in sentences."""


def read(path: Path, *, max_bytes: int | None = None) -> pd.DataFrame:
    """The table in a CSV or Parquet file; one that unpacks to more than ``max_bytes`` is refused.

    By default that is 4 GiB, and a file that grows a hundredfold is refused from 100 MiB on.
    """
    if path.suffix.lower() not in PARQUET | CSV or _is_folder(path):
        if not _is_folder(path):
            require_regular_file(path)
        raise InputError(f"{path}: not a table that can be read; pass a .csv, .tsv or .parquet file.")
    require_regular_file(path)
    try:
        return _parquet(path, max_bytes) if path.suffix.lower() in PARQUET else _csv(path, max_bytes)
    except InputError:
        raise
    except ImportError as error:
        if path.suffix.lower() in PARQUET:
            raise MissingExtraError("Parquet files need pyarrow: pip install 'excise[parquet]'") from None
        raise MissingExtraError(f"{path}: reading it needs another package ({error}).") from None
    except MemoryError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise InputError(f"{path}: could not be read (it is damaged: {type(error).__name__} {error}).") from None
    except Exception as error:  # of a damaged file the libraries that read it raise anything
        raise InputError(f"{path}: could not be read ({reason(error)}).") from None


def _csv(path: Path, max_bytes: int | None) -> pd.DataFrame:
    with unpack(path, max_bytes) if path.suffix.lower() in OPENERS else path.open("rb") as stream:
        # the quick reader of numbers can't take long exponents, the exact one needs four times as long
        numbers: FloatPrecision = "round_trip" if has_long_exponents(stream) else "high"
        frame = _csv_by(path, stream, "\t" if ".tsv" in path.suffixes else ",", numbers)
        if frame.shape[1] == 1 and ";" in str(frame.columns[0]):  # the list separator of many spreadsheets
            frame = _csv_by(path, stream, ";", numbers)
    return frame


def _csv_by(path: Path, stream: BinaryIO, separator: str, numbers: FloatPrecision) -> pd.DataFrame:
    stream.seek(0)
    # more than there are, where names have separators in quotes
    _refuse_too_many_columns(path, stream.readline(LONGEST_LINE).count(separator.encode()) + 1)
    stream.seek(0)
    return pd.read_csv(stream, sep=separator, index_col=False, float_precision=numbers)


def _parquet(path: Path, max_bytes: int | None) -> pd.DataFrame:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        found = file.metadata
        _refuse_too_many_columns(path, found.num_columns)
        # a column of one value repeated takes no space in the file, but 8 bytes a row in memory
        refuse_too_large(path, 8 * found.num_rows * max(found.num_columns, 1), path.stat().st_size, max_bytes)
    return pd.read_parquet(path)


def _refuse_too_many_columns(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise InputError(f"{path}: has {columns:,} columns, and at most {MOST_COLUMNS:,} are read; split the table.")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def prepare(frame: pd.DataFrame, target: str) -> Table:
    """Split off the target, make every other column numeric, and leave out what can't be used."""
    frame = frame.rename(columns=str)
    if target not in frame.columns:
        by_lower_case = {name.lower(): name for name in frame.columns}
        close = difflib.get_close_matches(target.lower(), by_lower_case, n=1, cutoff=0.5)
        hint = f" Did you mean {by_lower_case[close[0]]!r}?" if close else f" It has: {', '.join(frame.columns[:10])}."
        raise InputError(f"The table has no column {target!r}.{hint}")
    if frame.columns.duplicated().any():
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"The table has two columns named {twice!r}; rename one.")
    if not types.is_numeric_dtype(frame[target]) or types.is_complex_dtype(frame[target]):
        raise InputError(
            f"The target {target!r} is {_kind(frame[target])}, not numbers; "
            "encode it as numbers whose order means something (0 and 1 for two classes)."
        )
    if len(frame) < 3:
        raise InputError(f"The table has {len(frame)} rows; at least 3 are needed.")
    notes: list[str] = []
    frame = frame.replace([np.inf, -np.inf], np.nan)
    frame = _without_empty_columns(frame, target, notes)
    frame = _without_incomplete_rows(frame, notes)
    if frame[target].nunique() < 2:
        raise InputError(f"The target {target!r} is always {frame[target].iloc[0]}, so nothing can tell it.")
    columns = _numeric_columns(frame.drop(columns=target), notes)
    columns = _without_constant_columns(columns, notes)
    if columns.shape[1] == 0:
        raise InputError(f"The table has no usable column besides {target!r}. " + " ".join(notes))
    return Table(columns=columns, target=frame[target].astype(float), notes=tuple(notes))


def _without_empty_columns(frame: pd.DataFrame, target: str, notes: list[str]) -> pd.DataFrame:
    gaps = frame.isna().all()
    empty = list(frame.columns[gaps.to_numpy()])
    if target in empty:
        raise InputError(f"The target {target!r} has no values at all.")
    if empty:
        notes.append(f"Left out, because empty: {_listed(empty)}.")
    return frame.drop(columns=empty) if empty else frame


def _without_incomplete_rows(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    complete = frame.dropna()
    missing = len(frame) - len(complete)
    if missing:
        worst = frame.isna().sum().idxmax()
        if len(complete) < 3:
            raise InputError(
                f"Only {len(complete)} rows have a value in every column; fill in or drop the columns with gaps first, "
                f"beginning with {worst!r}."
            )
        notes.append(f"Left out {missing:,} of {len(frame):,} rows, because a value is missing (most often {worst}).")
    return complete


def _numeric_columns(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
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
    columns = _in_order(frame, ready, parts)
    if columns.columns.duplicated().any():
        twice = columns.columns[columns.columns.duplicated()][0]
        raise InputError(f"The levels of a text column make a second column named {twice!r}; rename one.")
    return columns


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


def _without_constant_columns(columns: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    values = columns.to_numpy()
    same = (values == values[:1]).all(axis=0)
    constant = list(columns.columns[same])
    if constant:
        notes.append(f"Left out, because always the same: {_listed(constant)}.")
    kept: pd.DataFrame = columns.loc[:, ~same]
    return kept


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"


def _kind(column: pd.Series) -> str:
    if types.is_datetime64_any_dtype(column):
        return "dates"
    if types.is_complex_dtype(column):
        return "complex numbers"
    values = column.dropna()
    if len(values) == 0:
        return "empty"
    first = str(values.iloc[0])
    return f"text (such as {first[:SHOWN] + '…' * (len(first) > SHOWN)!r})"
