"""What a search for the columns that another one depends on will cost, by tables of a few thousand random rows."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from excise._support.checks import whole
from excise.errors import InputError
from excise.planning.scaling import Line
from excise.planning.stopwatch import Clock, taken
from excise.statistics.foci import foci

ROWS, COLUMNS = 48_000, (16, 64)  # of the tables that are measured; those of far fewer rows fit into the caches
SAMPLE = 100_000  # rows of a sample that is planned besides


@dataclass(frozen=True)
class Search:
    """What to expect of ``foci`` on a table."""

    rows: int
    columns: int
    features: int
    """How many columns are chosen."""
    seconds: float
    table: int
    """Bytes of the table, which is held in memory."""
    exponent: float
    """With how manieth a power of the rows the time grows there, as is known of the search."""
    measured_at: float
    """The share of rows times columns that was measured; what is below 1 is extrapolated."""

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain values, for JSON."""
        return asdict(self)


def size_of_table(words: str) -> tuple[int, int]:
    """Rows and columns.

    >>> size_of_table("1e8x1e3"), size_of_table("20000x50")
    ((100000000, 1000), (20000, 50))
    """
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*[x×]\s*([\d.]+(?:e\d+)?)\s*", words.lower())
    if found is None:
        raise InputError(f"--table {words!r} must be rows x columns, such as 1e6x50.")
    rows, columns = (int(float(part)) for part in found.groups())
    return whole(rows, "rows", 2), whole(columns, "columns")


def plan_search(rows: int, columns: int, *, features: int = 5, clock: Clock = time.process_time) -> list[Search]:
    """What a search takes on a table of this size, and on a sample of its rows.

    Two tables of random rows are searched, in one thread. With the columns the time grows along a line, and with the
    rows as the pairs of rows that a search looks at, which are known (see ``pairs``). The clock is the processor's.
    """
    whole(features, "features")
    search(ROWS // 32, COLUMNS[0], features)  # the first one compiles
    few, many = (taken(partial(search, ROWS, count, features), clock).seconds for count in COLUMNS)
    here = Line(COLUMNS, (few, many)).at(columns)

    def at(count: int) -> Search:
        seconds = here * pairs(count, features) / pairs(ROWS, features)
        share = min(1.0, ROWS * COLUMNS[1] / (count * columns))
        exponent = math.log2(pairs(2 * count, features) / pairs(count, features))
        return Search(count, columns, features, seconds, count * columns * 8, exponent, share)

    return [at(rows)] if rows <= SAMPLE else [at(rows), at(SAMPLE)]


def pairs(rows: int, features: int) -> float:
    """How many pairs of rows a search looks at for each column, but for a constant.

    The first choice sorts each column. With d columns chosen, the nearest of a row in these and one more is found among
    its n^(1/(d+1)) nearest in these.

    >>> pairs(4, 1), pairs(4, 2)
    (8.0, 16.0)
    """
    sorting = rows * math.log2(rows)
    return math.fsum([sorting, *(rows ** (1 + 1 / (chosen + 1)) for chosen in range(1, features))])


def search(rows: int, columns: int, features: int) -> None:
    """Choose so many columns of a random table."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(rows, columns))
    wanted = table[:, 0] * table[:, 1] + table[:, 2] + 0.1 * rng.normal(size=rows)
    foci(table, wanted, max_features=min(features, columns), stop=False, random_state=0, n_jobs=1)
