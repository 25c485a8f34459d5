"""What a search comes back with: the chosen columns, and, where it saw a sample of the rows, how sure it is of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise._support import checks

LEVEL = 0.95
"""How often the interval of T holds it."""
MOST_ROWS = 2**20
LEAST_ROWS = 100


@dataclass(frozen=True)
class Tolerance:
    """How exactly T is to be known: as many rows are taken as that needs.

    >>> Tolerance(0.01).half_width
    0.01
    """

    half_width: float = 0.01
    """T may be off by that much, at 95 %."""
    most_rows: int = MOST_ROWS
    """The most rows that T is measured on; where they don't suffice, a warning says what was reached."""

    def __post_init__(self) -> None:
        checks.number(self.half_width, "half_width", positive=True, below=1, meaning="T is a share, from 0 to 1")
        checks.whole(self.most_rows, "most_rows", LEAST_ROWS)


@dataclass(frozen=True, eq=False)
class Sampling:
    """Which rows a search saw, and how far T may be from that of all of them."""

    table_rows: int
    """Rows of the table."""
    searched: int
    """Rows that columns were chosen on, drawn at random."""
    measured: int
    """Rows that T was measured on."""
    fresh: bool
    """Whether these are others than those searched, so that the luck of the winners is not counted."""
    score_errors: NDArray[np.float64]
    """Standard error of each score."""
    low: NDArray[np.float64]
    """Lower end of the 95 % interval of each total."""
    high: NDArray[np.float64]
    """Upper end; what T would gain from nearer neighbours, had all rows been seen, is allowed for."""
    stability: NDArray[np.float64]
    """Share of the four quarters of the searched rows in which a search chose the column too."""
    half_width: float
    """How far the total of all chosen columns may be off, at 95 %; where none is chosen, that of the best one."""
    tolerance: float | None = None
    """The half-width asked for."""
    left_out: tuple[int, ...] = ()
    """Columns that are constant in the rows searched, and so could not be chosen."""

    @property
    def rows(self) -> int:
        """Rows that were used in all."""
        return self.searched + self.measured if self.fresh else self.searched

    @property
    def reached(self) -> bool:
        """Whether T is as exact as asked for."""
        return self.tolerance is None or self.half_width <= self.tolerance

    def __str__(self) -> str:
        searched = f"Searched {self.searched:,} of {self.table_rows:,} rows"
        if self.fresh:
            words = f"{searched}, drawn at random; T is measured on {self.measured:,} others"
        else:
            words = f"{searched}; T is measured on the same"
        asked = "" if self.reached else f", not the {self.tolerance:g} asked for"
        return f"{words}, to ± {self.half_width:.2g} (95 %){asked}."


@dataclass(frozen=True, eq=False)
class Selection:
    """The columns that were chosen, in the order of choice."""

    indices: NDArray[np.int64]
    """Positions of the chosen columns."""
    scores: NDArray[np.float64]
    """T(Y, X_k | the columns chosen before k) of each step: the share of the rest that the column explains."""
    totals: NDArray[np.float64]
    """T(Y, the first k columns chosen): what they explain together."""
    names: tuple[str, ...] | None = None
    """Names of the chosen columns, where X was a data frame."""
    errors: NDArray[np.float64] | None = None
    """Standard error of each total, where ``sample`` was given."""
    sampling: Sampling | None = None
    """Which rows were taken, and how sure T is, where ``sample`` was given."""

    def __len__(self) -> int:
        return len(self.indices)


def read_only(values: Any, kind: type) -> NDArray[Any]:
    """An array that nobody can change by accident."""
    array: NDArray[Any] = np.array(values, dtype=kind)
    array.setflags(write=False)
    return array
