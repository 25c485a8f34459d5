"""FOCI and L-FOCI: the columns of a table that together tell what can be known about y (its Markov blanket)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from excise._support import checks
from excise._support.progress import Bar
from excise.errors import InputError, UndefinedWarning, warn
from excise.statistics._incremental import Candidates, available_cores
from excise.statistics._neighbors import Floats, Ints
from excise.statistics.dependence import Perturb, RandomState, perturbed, ranks

Method = Literal["full", "cheap"]


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

    def __len__(self) -> int:
        return len(self.indices)


def foci(
    X: Any,
    y: Any,
    *,
    max_features: int | None = None,
    stop: bool = True,
    standardize: bool = True,
    method: Method = "full",
    keep_first: bool = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
    progress: bool = False,
) -> Selection:
    """Find a small set of columns that makes y independent of all the others.

    Each step adds the column k with the largest T(Y, X_k | columns chosen so far) (see ``codec``) and the search ends
    when none is positive; the number of columns is found, not given. Every neighbour is exact.

    Args:
        X: n rows × p columns: an array, a list of rows, a data frame or a tensor.
        y: One column of n values, numeric: T reads its order. Ties are fine.
        max_features: The most columns to choose; None for no limit.
        stop: Whether to end when no column has T > 0. With False exactly ``max_features`` columns are chosen.
        standardize: Whether to bring the columns to mean 0 and standard deviation 1 first.
        method: ``"full"``, or ``"cheap"``: only the best single column (the paper's variant for large layers).
        keep_first: Keep the best single column even if its T is not positive (the paper's algorithm 2).
        random_state: Seed or generator for choosing among equally near neighbours; without ties it changes nothing.
        n_jobs: Threads to use; None for all cores. The answer does not depend on it.
        progress: Whether to show a bar, where it takes more than a second.

    Returns:
        The chosen columns and their T. Empty, with a warning, where y is constant.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 5))
    >>> foci(X, X[:, 3] * X[:, 1], random_state=0).indices.tolist()
    [1, 3]
    """
    return _select(
        X,
        y,
        noise=None,
        perturb="predictors",
        max_features=max_features,
        stop=stop,
        standardize=standardize,
        method=method,
        keep_first=keep_first,
        random_state=random_state,
        n_jobs=n_jobs,
        progress=progress,
    )


class SearchOptions(TypedDict, total=False):
    """Those of ``foci``."""

    max_features: int | None
    stop: bool
    standardize: bool
    method: Method
    keep_first: bool
    random_state: RandomState
    n_jobs: int | None
    progress: bool


def lfoci(
    X: Any,
    y: Any,
    *,
    noise: float | None = None,
    perturb: Perturb = "predictors",
    **options: Unpack[SearchOptions],
) -> Selection:
    """``foci`` with the randomised coefficient L-CODEC (see ``lcodec``) instead of CODEC.

    Args:
        X: As in ``foci``.
        y: As in ``foci``.
        noise: Standard deviation of the Gaussian noise added to every value of X; None for a vanishing perturbation,
            which moves nothing but ties.
        perturb: ``"predictors"``, or ``"all"``, the paper's literal form, which perturbs y as well.
        options: All of ``foci``'s, with its defaults; ``random_state`` is for the perturbation too.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(0, 2, size=(500, 5))
    >>> sorted(lfoci(X, X[:, 0] & X[:, 4], random_state=0).indices.tolist())
    [0, 4]
    """
    return _select(X, y, noise=noise, perturb=perturb, **options)


def _select(
    X: Any,
    y: Any,
    *,
    noise: float | None,
    perturb: Perturb,
    random_state: RandomState = None,
    n_jobs: int | None = None,
    progress: bool = False,
    standardize: bool = True,
    keep_first: bool = False,
    stop: bool = True,
    method: Method = "full",
    max_features: int | None = None,
) -> Selection:
    names = checks.column_names(X)
    X, y = checks.matrix(X, "X"), checks.vector(y, "y")
    n = checks.same_length(X=X, y=y)
    limit = _limit(max_features, X.shape[1], checks.choice(method, ("full", "cheap"), "method"))
    if standardize:
        _refuse_constant_columns(X, names)
    threads = threads_of(n_jobs)
    rng = checks.generator(random_state)
    y, X = perturbed(rng, y, X, noise=noise, perturb=perturb)
    above, below = ranks(y)
    if below.min() == n:
        warn("y is constant, so no column tells anything about it; none is chosen.", UndefinedWarning)
        return _selection([], [], [], names)
    with Bar(enabled=progress) as bar:
        bar.start("reading the columns", X.shape[1])
        columns = Candidates(X, above, checks.key(rng), standardize=standardize, n_jobs=threads, advance=bar.advance)
        return _forward(columns, below, limit, stop, keep_first, names, bar)


def _forward(
    columns: Candidates, below: Ints, limit: int, stop: bool, keep_first: bool, names: tuple[str, ...] | None, bar: Bar
) -> Selection:
    """The greedy search: one column per step, by the largest Σ min(R_i, R_M(i))."""
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
        if stop and not score > 0 and not (keep_first and not chosen):
            break
        known = float(sums[best])
        chosen.append(best)
        scores.append(float(score))
        totals.append((known - nothing) / (everything - nothing))
        columns.add(best)
    return _selection(chosen, scores, totals, names)


def _best_two(sums: Floats) -> tuple[int, int]:
    best = int(np.argmax(sums))
    others = sums.copy()
    others[best] = -np.inf
    return best, int(np.argmax(others))


def _selection(chosen: list[int], scores: list[float], totals: list[float], names: tuple[str, ...] | None) -> Selection:
    arrays = np.array(chosen, dtype=np.int64), np.array(scores, dtype=float), np.array(totals, dtype=float)
    for array in arrays:
        array.setflags(write=False)
    return Selection(*arrays, names=None if names is None else tuple(names[c] for c in chosen))


def _limit(max_features: int | None, p: int, method: str) -> int:
    if max_features is None:
        limit = p
    elif isinstance(max_features, bool) or not isinstance(max_features, int | np.integer) or not 1 <= max_features <= p:
        raise InputError(f"max_features must be from 1 to {p} (the columns of X) or None, not {max_features!r}.")
    else:
        limit = int(max_features)
    return 1 if method == "cheap" else limit


def threads_of(n_jobs: int | None) -> int:
    """How many threads that asks for."""
    if n_jobs is None or n_jobs == -1:
        return available_cores()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs < 1:
        raise InputError(f"n_jobs must be a positive integer, -1 or None (all cores), not {n_jobs!r}.")
    return int(n_jobs)


def _refuse_constant_columns(X: NDArray[Any], names: tuple[str, ...] | None) -> None:
    constant = np.flatnonzero(X.max(axis=0) == X.min(axis=0))
    if len(constant):
        c = constant[0]
        which = f"{names[c]!r}" if names else f"{c}"
        more = f" (and {len(constant) - 1} more)" if len(constant) > 1 else ""
        raise InputError(
            f"X has a constant column, {which}{more}, whose value is always {X[0, c]}, so it can't be standardised; "
            "drop it, or pass standardize=False."
        )
