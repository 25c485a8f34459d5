"""Tables in files: CSV, packed or not, and Parquet, as a whole or as some of their rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pandas as pd

from excise._support import checks
from excise._support.reading import reason, require_regular_file
from excise.errors import InputError, MissingExtraError
from excise.statistics._drawing import Kept, Most
from excise.statistics._neighbors import Ints
from excise.statistics.exponents import has_long_exponents
from excise.statistics.parquet import ParquetColumns, parquet_rows
from excise.statistics.unpacking import OPENERS, stream, unpack

PARQUET = {".parquet", ".pq"}
CSV = {".csv", ".tsv", ".txt", *OPENERS}
MOST_COLUMNS = 200_000
LONGEST_LINE = 64 * 2**20
VALUES_AT_ONCE = 2**21  # of a CSV file that rows are drawn from
FloatPrecision = Literal["high", "round_trip"]


def read(path: Path, *, max_bytes: int | None = None) -> pd.DataFrame | ParquetColumns:
    """The table in a CSV or Parquet file, for ``prepare``; one that unpacks to more than ``max_bytes`` is refused.

    By default that is 4 GiB, and a file that grows a hundredfold is refused from 100 MiB on. Of a Parquet file, columns
    are read when they are looked at.
    """
    with explained(path):
        if path.suffix.lower() in PARQUET:
            return ParquetColumns(path, max_bytes, _refuse_too_many_columns, explained)
        return _csv(path, max_bytes)


def read_whole(path: Path, *, max_bytes: int | None = None) -> pd.DataFrame:
    """The same table in memory, with all its columns at once."""
    table = read(path, max_bytes=max_bytes)
    return table if isinstance(table, pd.DataFrame) else table.whole()


def read_rows(
    path: Path, most: Most, rng: np.random.Generator, *, max_bytes: int | None = None
) -> tuple[pd.DataFrame, int]:
    """Rows of the table in random order, and how many it has; all of them, as they stand, where they are no more.

    No more than these are ever held; ``most`` says how many of so many columns, and ``max_bytes`` is about them.
    """
    rng = checks.apart_from(rng)
    with explained(path):
        if path.suffix.lower() in PARQUET:
            return parquet_rows(path, most, rng, max_bytes, _refuse_too_many_columns)
        return _csv_rows(path, most, rng, max_bytes)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file is said in its name."""
    if path.suffix.lower() not in PARQUET | CSV or _is_folder(path):
        if not _is_folder(path):
            require_regular_file(path)
        raise InputError(f"{path}: not a table that can be read; pass a .csv, .tsv or .parquet file.")
    require_regular_file(path)
    try:
        yield
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
    with unpack(path, max_bytes) if path.suffix.lower() in OPENERS else path.open("rb") as file:
        # the quick reader of numbers can't take long exponents, the exact one needs four times as long
        numbers: FloatPrecision = "round_trip" if has_long_exponents(file) else "high"
        frame = _csv_by(path, file, _usual_separator(path), numbers)
        if _has_semicolons(frame):
            frame = _csv_by(path, file, ";", numbers)
    return frame


def _csv_by(path: Path, file: BinaryIO, separator: str, numbers: FloatPrecision) -> pd.DataFrame:
    file.seek(0)
    # more than there are, where names have separators in quotes
    _refuse_too_many_columns(path, file.readline(LONGEST_LINE).count(separator.encode()) + 1)
    file.seek(0)
    return pd.read_csv(file, sep=separator, index_col=False, float_precision=numbers)


def _csv_rows(path: Path, most: Most, rng: np.random.Generator, max_bytes: int | None) -> tuple[pd.DataFrame, int]:
    def opened() -> BinaryIO:
        return stream(path, max_bytes) if path.suffix.lower() in OPENERS else path.open("rb")

    with opened() as file:
        numbers: FloatPrecision = "round_trip" if has_long_exponents(file) else "high"
    with opened() as file:
        first = io.BytesIO(file.readline(LONGEST_LINE))
    separator = _usual_separator(path)
    heading = _csv_by(path, first, separator, numbers)
    if _has_semicolons(heading):
        separator = ";"
        heading = _csv_by(path, first, separator, numbers)
    width = max(heading.shape[1], 1)
    kept, count = Kept(most(width)), 0
    options: Any = {"sep": separator, "index_col": False, "float_precision": numbers}
    with opened() as file, pd.read_csv(file, chunksize=max(VALUES_AT_ONCE // width, 100), **options) as pieces:
        for piece in pieces:
            count += len(piece)
            kept.look_at(rng.random(len(piece)), partial(_some, piece))
    if count == 0:
        return heading, 0
    order, (frame,) = kept.rows()
    return (frame if count <= kept.most else frame.iloc[np.argsort(order)]).reset_index(drop=True), count


def _some(frame: pd.DataFrame, rows: Ints) -> tuple[pd.DataFrame]:
    return (frame.iloc[rows],)


def _usual_separator(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes else ","


def _has_semicolons(frame: pd.DataFrame) -> bool:
    """The list separator of many spreadsheets."""
    return frame.shape[1] == 1 and ";" in str(frame.columns[0])


def _refuse_too_many_columns(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise InputError(f"{path}: has {columns:,} columns, and at most {MOST_COLUMNS:,} are read; split the table.")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
