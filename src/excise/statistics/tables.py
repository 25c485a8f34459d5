"""Reading a table from disk and making numbers of its columns, with a word on everything that was changed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api import types

from excise.errors import InputError, MissingExtraError

MOST_LEVELS = 20  # a text column with more different values is taken for an identifier or free text
PARQUET = {".parquet", ".pq"}
CSV = {".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz", ".zst"}


@dataclass(frozen=True)
class Table:
    """A target and the numeric columns that may tell something about it."""

    columns: pd.DataFrame
    target: pd.Series
    notes: tuple[str, ...]
    """What was done to the table, in sentences."""


def read(path: Path) -> pd.DataFrame:
    """The table in a CSV or Parquet file."""
    try:
        exists = path.exists()
    except OSError as error:
        raise InputError(f"{path}: can't be opened ({error.strerror}).") from None
    if not exists:
        raise InputError(f"{path}: no such file.")
    if path.is_dir() or path.suffix.lower() not in PARQUET | CSV:
        raise InputError(f"{path}: not a table that can be read; pass a .csv, .tsv or .parquet file.")
    try:
        if path.suffix.lower() in PARQUET:
            return pd.read_parquet(path)
        separator = "\t" if ".tsv" in path.suffixes else ","
        frame = pd.read_csv(path, sep=separator, index_col=False)
        if frame.shape[1] == 1 and ";" in str(frame.columns[0]):  # the list separator of many spreadsheets
            frame = pd.read_csv(path, sep=";", index_col=False)
        return frame
    except ImportError as error:
        if path.suffix.lower() in PARQUET:
            raise MissingExtraError("Parquet files need pyarrow: pip install 'excise[parquet]'") from None
        raise MissingExtraError(f"{path}: reading it needs another package ({error}).") from None
    except (ValueError, OSError, pd.errors.ParserError) as error:  # pyarrow's errors are among these
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path}: could not be read ({reason}).") from None


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
    empty = [name for name in frame.columns if frame[name].isna().all()]
    if target in empty:
        raise InputError(f"The target {target!r} has no values at all.")
    if empty:
        notes.append(f"Left out, because empty: {', '.join(empty)}.")
    return frame.drop(columns=empty)


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
    parts: list[pd.DataFrame] = []
    for name in frame.columns:
        column = frame[name]
        if types.is_datetime64_any_dtype(column):
            days = column.dt.tz_localize(None).astype("datetime64[ns]").astype("int64") / (24 * 3600 * 1e9)
            parts.append(days.to_frame(name))
            notes.append(f"{name} is a date: counted in days.")
        elif types.is_bool_dtype(column) or types.is_numeric_dtype(column) or types.infer_dtype(column) == "decimal":
            parts.append(column.astype(float).to_frame(name))
        else:
            parts += _levels(column, notes)
    columns = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=frame.index)
    if columns.columns.duplicated().any():
        twice = columns.columns[columns.columns.duplicated()][0]
        raise InputError(f"The levels of a text column make a second column named {twice!r}; rename one.")
    return columns


def _levels(column: pd.Series, notes: list[str]) -> list[pd.DataFrame]:
    """A categorical column as one 0/1 column per level; for two levels one column says it all."""
    text = column.astype(str)
    levels = sorted(text.unique())
    if len(levels) > MOST_LEVELS:
        notes.append(f"Left out {column.name}: text with {len(levels):,} different values (at most {MOST_LEVELS}).")
        return []
    shown = levels[1:] if len(levels) == 2 else levels
    names = [f"{column.name}={level}" for level in shown]
    notes.append(f"{column.name} is categorical ({len(levels)} levels): taken as 0/1 columns {', '.join(names)}.")
    return [pd.DataFrame({name: (text == level).astype(float) for name, level in zip(names, shown, strict=True)})]


def _without_constant_columns(columns: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    constant = [name for name in columns.columns if columns[name].nunique() < 2]
    if constant:
        notes.append(f"Left out, because always the same: {', '.join(constant)}.")
    return columns.drop(columns=constant)


def _kind(column: pd.Series) -> str:
    if types.is_datetime64_any_dtype(column):
        return "dates"
    if types.is_complex_dtype(column):
        return "complex numbers"
    values = column.dropna()
    return f"text (such as {str(values.iloc[0])!r})" if len(values) else "empty"
