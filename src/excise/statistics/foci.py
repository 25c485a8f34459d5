"""FOCI and L-FOCI: the columns of a table that together tell what can be known about y (its Markov blanket)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

from excise._support import checks
from excise._support.progress import Bar
from excise.errors import InputError
from excise.statistics._sampling import draw, search_sample
from excise.statistics._search import Method, Search, threads_of
from excise.statistics.dependence import Perturb, RandomState
from excise.statistics.selection import Selection, Tolerance

__all__ = ["Method", "Selection", "foci", "lfoci", "threads_of"]


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
    sample: int | Tolerance | None = None,
    backend: str | None = None,
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
        sample: For tables larger than memory or time. A number of rows: so many are searched, drawn at random, and T is
            measured on as many others. Or ``Tolerance(0.01)``: as many as it takes to know T to ± 0.01. X may then
            also be a memory-mapped file, or anything else with a shape that gives rows by ``X[numbers]``; or an
            iterator of pieces (of pandas, pyarrow, arrays), with y the name or number of a column in them, or None
            where the pieces are pairs (X, y).
        backend: Share out the columns over the workers of this backend of joblib: ``"loky"`` (processes), ``"dask"``,
            ``"ray"``; ``n_jobs`` is then how many. None takes the one of ``joblib.parallel_config`` for large tables,
            and threads otherwise. The answer does not depend on it.

    Returns:
        The chosen columns and their T. Empty, with a warning, where y is constant. With ``sample``, standard errors and
        what was sampled as well.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 5))
    >>> foci(X, X[:, 3] * X[:, 1], random_state=0).indices.tolist()
    [1, 3]
    """
    return _select(
        X,
        y,
        max_features=max_features,
        stop=stop,
        standardize=standardize,
        method=method,
        keep_first=keep_first,
        random_state=random_state,
        n_jobs=n_jobs,
        progress=progress,
        sample=sample,
        backend=backend,
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
    sample: int | Tolerance | None
    backend: str | None


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

    >>> import numpy as np
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
    random_state: RandomState = None,
    progress: bool = False,
    sample: int | Tolerance | None = None,
    **options: Any,
) -> Selection:
    search = Search(**options)
    rng = checks.generator(random_state)
    with Bar(enabled=progress) as bar:
        if sample is not None:
            return search_sample(draw(X, y, sample, rng), search, sample, rng, bar)
        if isinstance(X, Iterator):
            raise InputError(f"X is read in pieces ({type(X).__name__}); pass sample=, the rows to take from them.")
        names = checks.column_names(X)
        return search.run(checks.matrix(X, "X"), checks.vector(y, "y"), names, rng, bar)
