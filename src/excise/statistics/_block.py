"""A block of columns on a worker: what is sent there, and what it is asked. Nothing here knows how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.statistics._incremental import Advance, Columns, Step, no_advance
from excise.statistics._neighbors import Floats


@dataclass(frozen=True)
class Loading:
    """What a block needs besides its columns to answer the first question."""

    rank: Floats
    key: np.uint64
    exponent: int | None
    """Of the power of two that values are divided by; None to standardise them."""


@dataclass(frozen=True)
class Block:
    """Columns ready for the scans."""

    shape: tuple[int, int]
    tiles: NDArray[Any] | None = None
    orders: NDArray[Any] | None = None

    def columns(self, advance: Advance = no_advance) -> Columns:
        """Something that can be asked; mapped files are taken as the arrays that they are."""
        arrays: Any = {
            name: np.asarray(array)
            for name, array in (("tiles", self.tiles), ("orders", self.orders))
            if array is not None
        }
        return Columns(self.shape, n_jobs=1, advance=advance, **arrays)


def fill(block: Block, X: NDArray[Any], loading: Loading) -> Floats:
    """Put the columns into the arrays of the block; their first sums."""
    columns = block.columns()
    columns.load(np.asarray(X), loading.exponent)
    return columns.first_sums(loading.rank, loading.key)


def make(X: NDArray[Any], loading: Loading) -> tuple[Block, Floats]:
    """A block of these columns, and their first sums."""
    columns = Block(X.shape).columns()
    columns.load(np.asarray(X), loading.exponent)
    sums = columns.first_sums(loading.rank, loading.key)
    return Block(X.shape, columns.tiles, columns.orders), sums


def ask(block: Block, step: Step, advance: Advance = no_advance) -> Floats:
    """The sums of its columns in a later step."""
    return block.columns(advance).sums(replace(step, mark=np.asarray(step.mark)))


def column(block: Block, c: int) -> Floats:
    """One of its columns as it is searched."""
    return block.columns().column(c)


@dataclass(frozen=True)
class Outcome:
    """What came of a piece of work: a result, or an error of its own, which no other worker would spare."""

    result: Any = None
    error: Exception | None = None

    def value(self) -> Any:
        """The result."""
        if self.error is not None:
            raise self.error
        return self.result


def attempt(number: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, Outcome]:
    """Do it, so that whatever else is raised is known to be about the worker."""
    try:
        return number, Outcome(result=work(*arguments))
    except Exception as error:
        return number, Outcome(error=error)
