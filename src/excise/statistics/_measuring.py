"""How far is T of some rows from T of all? A standard error from disjoint parts, and an allowance for distance.

**The standard error.** T is computed in 16 disjoint parts of the rows as well, and the spread of these, over √16, is
that of the whole. A jackknife or a bootstrap would be wrong here: T looks at *nearest* rows, so that taking one out
changes its neighbours by a jump (the jackknife is up to twice too large, and useless with ties), and a row drawn twice
is its own neighbour (the bootstrap is a third too small). ``docs/statistics.md`` has the figures.

**The allowance.** In d columns the nearest of M rows is M^(-1/d) away, so T of few rows falls short of T of many. Four
quarters show by how much: from M/4 to M rows T gains D. If that goes on as M^(-r), it gains
D / (4^r - 1) · (1 - (M/N)^r) up to all N rows. r = 1/d is the slowest that it can be. A rate that is read off the
parts is faster, and too fast: in eight columns the interval then held T two times of three. Columns of few values do
not count in d: once all their combinations were seen, their distance is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from excise.statistics._neighbors import Floats, Ints, mix, nearest
from excise.statistics.dependence import ranks
from excise.statistics.selection import LEVEL

PARTS = 16
QUARTERS = 4
ROWS_A_CELL = 4  # in a cell of equal rows, on average, for its columns to be taken as seen
FEWEST = 3  # rows that T can be computed from


@dataclass(frozen=True)
class Measured:
    """T of the first one, two, … columns, and how far off it may be."""

    rows: int
    fresh: bool
    """Whether the columns were chosen on other rows."""
    totals: Floats
    errors: Floats
    scores: Floats
    score_errors: Floats
    low: Floats
    high: Floats

    @property
    def half_width(self) -> float:
        """The larger of the two distances from T of all the columns to the ends of its interval."""
        if len(self.totals) == 0:
            return float("nan")
        return float(max(self.high[-1] - self.totals[-1], self.totals[-1] - self.low[-1]))


def measure(
    points: Floats,
    y: Floats,
    *,
    table_rows: int,
    fresh: bool,
    seed: np.uint64,
    n_jobs: int,
    totals: Floats | None = None,
) -> Measured:
    """T of y on the first one, two, … columns of ``points``, whose rows are in random order; or errors of given T."""
    if totals is None:
        totals = shares(points, y, seed, n_jobs)
    quarters, parts = (
        np.array([shares(points[i::k], y[i::k], np.uint64(mix(seed, k + i)), n_jobs) for i in range(k)])
        for k in (QUARTERS, PARTS)
    )
    errors = _error(parts)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, PARTS - 1)) * errors
    rate = 1 / dimensions(points)
    gains = np.maximum(totals - quarters.mean(axis=0), 0) / (4**rate - 1) * (1 - (len(y) / table_rows) ** rate)
    return Measured(
        rows=len(y),
        fresh=fresh,
        totals=totals,
        errors=errors,
        scores=scores_of(totals[None])[0],
        score_errors=_error(scores_of(parts)),
        low=totals - reach,
        high=np.minimum(totals + reach + gains, np.maximum(totals, 1.0)),
    )


def shares(points: Floats, y: Floats, seed: np.uint64, n_jobs: int) -> Floats:
    """T(Y, the first k columns) for all k; NaN where y is constant, or has hardly any rows."""
    n, d = points.shape
    found = np.full(d, np.nan)
    if n < FEWEST:
        return found
    above, below = ranks(y)
    spread = float(below.astype(np.float64) @ (n - below))
    nothing = float(below.astype(np.float64) @ below)
    if spread == 0:
        return found
    for k in range(d):
        near: Ints = nearest(np.ascontiguousarray(points[:, : k + 1]), np.uint64(mix(seed, k)), n_jobs)
        found[k] = (n * float(np.minimum(above, above[near]).sum()) - nothing) / spread
    return found


def scores_of(totals: Floats) -> Floats:
    """T(Y, X_k | those before) from the totals of one search a line: what k adds, of what was left."""
    before = np.column_stack((np.zeros(len(totals)), totals[:, :-1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(before == 1, np.nan, (totals - before) / (1 - before))


def _error(parts: Floats) -> Floats:
    error: Floats = parts.std(axis=0, ddof=1) / np.sqrt(len(parts))
    return error


def dimensions(points: Floats) -> Floats:
    """In how many columns neighbours are still to come nearer, of the first one, two, …: at least one.

    Columns of so few values that most of their combinations are there several times count as one, all together.
    """
    n, d = points.shape
    levels = [len(np.unique(points[:, c])) for c in range(d)]
    found = np.ones(d)
    for k in range(1, d + 1):
        seen = int((np.cumprod(np.sort(levels[:k]).astype(np.float64)) * ROWS_A_CELL <= n).sum())
        found[k - 1] = k - seen + (seen > 0)
    return found
