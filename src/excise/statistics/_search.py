"""The greedy search of FOCI over the columns of a table in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from excise._support import checks
from excise._support.progress import Bar
from excise.errors import InputError, UndefinedWarning, warn
from excise.statistics._candidates import Candidates, LocalCandidates, SharedCandidates
from excise.statistics._crew import crew_of
from excise.statistics._incremental import available_cores
from excise.statistics._neighbors import Floats, Ints
from excise.statistics.dependence import Perturb, perturbed, ranks
from excise.statistics.selection import Selection, read_only

Method = Literal["full", "cheap"]
Names = tuple[str, ...] | None


@dataclass(frozen=True)
class Search:
    """The options of ``foci`` and ``lfoci``, but for which rows they see."""

    noise: float | None = None
    perturb: Perturb = "predictors"
    max_features: int | None = None
    stop: bool = True
    standardize: bool = True
    method: Method = "full"
    keep_first: bool = False
    n_jobs: int | None = None
    backend: str | None = None

    def run(self, X: NDArray[Any], y: NDArray[Any], names: Names, rng: np.random.Generator, bar: Bar) -> Selection:
        """Search a checked table."""
        n = checks.same_length(X=X, y=y)
        limit = self.limit(X.shape[1])
        if self.standardize:
            _refuse_constant_columns(X, names)
        threads = threads_of(self.n_jobs)
        y, X = perturbed(rng, y, X, noise=self.noise, perturb=self.perturb)
        above, below = ranks(y)
        if below.min() == n:
            warn("y is constant, so no column tells anything about it; none is chosen.", UndefinedWarning)
            return selection_of([], [], [], names)
        bar.start("reading the columns", X.shape[1])
        given = X, above, checks.key(rng)
        options: Any = {"standardize": self.standardize, "n_jobs": threads, "advance": bar.advance}
        with crew_of(self.backend, self.n_jobs, X.size) as crew:
            columns = (
                LocalCandidates(*given, **options) if crew is None else SharedCandidates(*given, **options, crew=crew)
            )
            return self._forward(columns, below, limit, names, bar)

    def limit(self, p: int) -> int:
        """How many of p columns may be chosen."""
        most = self.max_features
        checks.choice(self.method, ("full", "cheap"), "method")
        if most is None:
            limit = p
        elif isinstance(most, bool) or not isinstance(most, int | np.integer) or not 1 <= most <= p:
            raise InputError(f"max_features must be from 1 to {p} (the columns of X) or None, not {most!r}.")
        else:
            limit = int(most)
        return 1 if self.method == "cheap" else limit

    def _forward(self, columns: Candidates, below: Ints, limit: int, names: Names, bar: Bar) -> Selection:
        """One column per step, by the largest Σ min(R_i, R_M(i))."""
        n, p = columns.shape
        everything = float(columns.rank.sum())
        known = float(below.astype(np.float64) @ below) / n  # Σ L_i²/n, what T(Y, Z) = 0 amounts to
        nothing = known
        chosen: list[int] = []
        scores: list[float] = []
        totals: list[float] = []
        favorite = 0
        while len(chosen) < limit:
            bar.start(f"column {len(chosen) + 1}", p)
            sums = columns.sums(favorite) if chosen else columns.first_sums()
            best, favorite = _best_two(np.where(columns.chosen, -np.inf, sums))
            score = (sums[best] - known) / (everything - known) if everything > known else float("nan")
            if self.stop and not score > 0 and not (self.keep_first and not chosen):
                break
            known = float(sums[best])
            chosen.append(best)
            scores.append(float(score))
            totals.append((known - nothing) / (everything - nothing))
            columns.add(best)
        return selection_of(chosen, scores, totals, names)


def _best_two(sums: Floats) -> tuple[int, int]:
    best = int(np.argmax(sums))
    others = sums.copy()
    others[best] = -np.inf
    return best, int(np.argmax(others))


def selection_of(chosen: list[int], scores: list[float], totals: list[float], names: Names) -> Selection:
    """The columns with their T and their names."""
    return Selection(
        read_only(chosen, np.int64),
        read_only(scores, float),
        read_only(totals, float),
        names=None if names is None else tuple(names[c] for c in chosen),
    )


def threads_of(n_jobs: int | None) -> int:
    """How many threads that asks for."""
    if n_jobs is None or n_jobs == -1:
        return available_cores()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs < 1:
        raise InputError(f"n_jobs must be a positive integer, -1 or None (all cores), not {n_jobs!r}.")
    return int(n_jobs)


def constant_columns(X: NDArray[Any]) -> Ints:
    """Those that have one value only."""
    return np.flatnonzero(X.max(axis=0) == X.min(axis=0))


def _refuse_constant_columns(X: NDArray[Any], names: Names) -> None:
    constant = constant_columns(X)
    if len(constant):
        c = constant[0]
        which = f"{names[c]!r}" if names else f"{c}"
        more = f" (and {len(constant) - 1} more)" if len(constant) > 1 else ""
        raise InputError(
            f"X has a constant column, {which}{more}, whose value is always {X[0, c]}, so it can't be standardised; "
            "drop it, or pass standardize=False."
        )
