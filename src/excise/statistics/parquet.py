"""Parquet files, read some columns at a time, and of rows that were drawn, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from excise.statistics._drawing import Most, some_of
from excise.statistics.unpacking import refuse_too_large

BYTES_AT_ONCE = 2**26
"""What is read of the file at a time, if its columns are numbers; never less than a column."""

Refuse = Callable[[Path, int], None]


class ParquetColumns:
    """A file of which some columns at a time are in memory."""

    def __init__(
        self,
        path: Path,
        max_bytes: int | None,
        refuse: Refuse,
        explained: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._path, self._explained = path, explained
        with _opened(path) as file:
            found = file.metadata
            refuse(path, found.num_columns)
            # a column of one value repeated takes no space in the file, but 8 bytes a row in memory
            refuse_too_large(path, 8 * found.num_rows * max(found.num_columns, 1), path.stat().st_size, max_bytes)
            self.rows: int = found.num_rows
            self._columns, self._index = _columns(file.schema_arrow)
            self.names: list[str] = list(file.schema_arrow.empty_table().to_pandas().rename(columns=str).columns)

    def __len__(self) -> int:
        return self.rows

    def column(self, name: str) -> pd.Series:
        """One of the columns."""
        if self._is_small:
            return self._whole[name]
        return self._read([self._columns[self.names.index(name)]]).iloc[:, 0]

    def frames(self) -> Iterator[pd.DataFrame]:
        """All columns from left to right, some at a time."""
        if self._is_small:
            yield self._whole
        else:
            yield from map(self._read, _parts(self._columns, self.rows))

    def whole(self) -> pd.DataFrame:
        """All of them in one frame."""
        return self._whole

    @property
    def _is_small(self) -> bool:
        return len(_parts(self._columns, self.rows)) < 2

    @cached_property
    def _whole(self) -> pd.DataFrame:
        """Kept, so that a small file is read but once."""
        return self._read(self._columns)

    def _read(self, columns: list[str]) -> pd.DataFrame:
        wanted = columns + self._index
        with self._explained(self._path), _opened(self._path) as file:
            # asked for "a", it reads "a.b" as well
            frame: pd.DataFrame = file.read(columns=wanted).select(wanted).to_pandas()
        return frame.rename(columns=str)


def parquet_rows(
    path: Path, most: Most, rng: np.random.Generator, max_bytes: int | None, refuse: Refuse
) -> tuple[pd.DataFrame, int]:
    """Rows of the file in random order, and how many it has; all of them, as they stand, where they are no more."""
    import pyarrow

    with _opened(path) as file:
        found = file.metadata
        refuse(path, found.num_columns)
        rows, width = found.num_rows, max(found.num_columns, 1)
        count = min(most(width), rows)
        refuse_too_large(path, 8 * count * width, path.stat().st_size, max_bytes)
        order = np.arange(rows) if count == rows else some_of(rows, count, rng)
        wanted = np.sort(order)
        groups, begin = [], 0
        for group in range(found.num_row_groups):
            end = begin + found.row_group(group).num_rows
            here = wanted[np.searchsorted(wanted, begin) : np.searchsorted(wanted, end)] - begin
            groups.append(_rows_of_group(file, group, here))
            begin = end
        table = pyarrow.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    frame = table.to_pandas().rename(columns=str)
    return frame.iloc[np.argsort(np.argsort(order))].reset_index(drop=True), rows


def _rows_of_group(file: Any, group: int, rows: Any) -> Any:
    """These rows of all columns, of which some at a time are read."""
    import pyarrow

    schema = file.schema_arrow
    found: dict[str, Any] = {}
    for some in _parts(list(dict.fromkeys(schema.names)), file.metadata.row_group(group).num_rows):
        part = file.read_row_group(group, columns=some).select(some).take(pyarrow.array(rows))
        found.update(zip(part.column_names, part.columns, strict=True))
    return pyarrow.table([found[name] for name in schema.names], schema=schema)


def _columns(schema: Any) -> tuple[list[str], list[str]]:
    """Names of the columns, and of those that are the index of a frame."""
    said = schema.pandas_metadata or {}
    index = [name for name in said.get("index_columns", []) if isinstance(name, str)]
    return [name for name in schema.names if name not in index], index


def _parts(columns: list[str], rows: int) -> list[list[str]]:
    width = max(1, BYTES_AT_ONCE // (8 * max(rows, 1)))
    return [columns[low : low + width] for low in range(0, len(columns), width)]


def _opened(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path)
