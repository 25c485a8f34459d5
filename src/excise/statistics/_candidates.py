"""The columns of a table as candidates of the search, in the memory of this process or shared out over workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.statistics._block import Loading
from excise.statistics._crew import Crew
from excise.statistics._incremental import Advance, Columns, Step, common_exponent
from excise.statistics._neighbors import Floats, Ints, mix, nearest, one_cell
from excise.statistics._scan import LANES


class Candidates(ABC):
    """What is chosen so far, and what each other column would add to it.

    ``rank`` is R, the max ranks of y; ``seed`` is what draws among equally near rows are made from.
    """

    def __init__(self, shape: tuple[int, int], rank: Ints, seed: np.uint64, n_jobs: int) -> None:
        n, p = self.shape = shape
        self.rank = rank.astype(np.float64)  # whole numbers, and so are their sums: exact in any order
        self.chosen = np.zeros(p, dtype=bool)
        self._seed, self._n_jobs = seed, n_jobs
        self._points = np.empty((n, 0))
        self._cells = one_cell(n)

    def add(self, c: int) -> None:
        """Choose column c: from now on ``sums`` is about what the others add to it."""
        column = self.column(c)
        self.chosen[c] = True
        self._points = np.column_stack((self._points, column))
        self._cells = self._cells.split_by(column)

    def sums(self, favorite: int) -> Floats:
        """Σ min(R_i, R_M(i)) of each column together with those chosen, the largest exact.

        ``favorite``, which is likely to do well, sets the first mark.
        """
        mark = np.zeros(1)
        if self._cells.all_distinct and self.is_worth_a_mark:
            neighbor = nearest(np.column_stack((self._points, self.column(favorite))), self._key, self._n_jobs)
            mark[0] = np.minimum(self.rank, self.rank[neighbor]).sum()
        return self.ask(Step(self.rank, self._key, self._points, self._cells, self.chosen, mark))

    @property
    def _key(self) -> np.uint64:
        return np.uint64(mix(self._seed, self._points.shape[1]))

    @property
    @abstractmethod
    def is_worth_a_mark(self) -> bool:
        """Whether giving up columns saves more than finding the mark costs."""

    @abstractmethod
    def first_sums(self) -> Floats:
        """Σ min(R_i, R_M(i)) of each column by itself."""

    @abstractmethod
    def column(self, c: int) -> Floats:
        """Column c as it is searched."""

    @abstractmethod
    def ask(self, step: Step) -> Floats:
        """The sums of all columns."""


class LocalCandidates(Candidates):
    """All columns in this process, in threads."""

    def __init__(
        self, X: NDArray[Any], rank: Ints, seed: np.uint64, *, standardize: bool, n_jobs: int, advance: Advance
    ) -> None:
        super().__init__(X.shape, rank, seed, n_jobs)
        self._columns = Columns(X.shape, n_jobs=n_jobs, advance=advance)
        self._columns.load(X, None if standardize else common_exponent(X))

    @property
    def is_worth_a_mark(self) -> bool:
        """Not for small tables."""
        return not self._columns.is_small

    def first_sums(self) -> Floats:
        """Σ min(R_i, R_M(i)) of each column by itself."""
        return self._columns.first_sums(self.rank, self._key)

    def column(self, c: int) -> Floats:
        """Column c as it is searched."""
        return self._columns.column(c)

    def ask(self, step: Step) -> Floats:
        """The sums of all columns."""
        return self._columns.sums(step)


class SharedCandidates(Candidates):
    """The columns in blocks, one for each worker."""

    def __init__(
        self,
        X: NDArray[Any],
        rank: Ints,
        seed: np.uint64,
        *,
        standardize: bool,
        n_jobs: int,
        advance: Advance,
        crew: Crew,
    ) -> None:
        super().__init__(X.shape, rank, seed, n_jobs)
        p = X.shape[1]
        self._crew, self._advance = crew, advance
        self._width = -(-p // (crew.count * LANES)) * LANES
        self._parts = [slice(low, min(low + self._width, p)) for low in range(0, p, self._width)]
        loading = Loading(self.rank, self._key, None if standardize else common_exponent(X))
        self._first = np.concatenate(crew.load([X[:, part] for part in self._parts], loading))
        advance(p)

    @property
    def is_worth_a_mark(self) -> bool:
        """What is worth workers is."""
        return True

    def first_sums(self) -> Floats:
        """Σ min(R_i, R_M(i)) of each column by itself."""
        return self._first

    def column(self, c: int) -> Floats:
        """Column c as it is searched."""
        return self._crew.column(c // self._width, c % self._width)

    def ask(self, step: Step) -> Floats:
        """The sums of all columns."""
        sums = np.concatenate(self._crew.ask([step.of(part) for part in self._parts]))
        self._advance(self.shape[1])
        return sums
