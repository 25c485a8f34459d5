"""How much does y depend on z, given x? Chatterjee's ξ, CODEC, its randomised form L-CODEC, and a test.

All of them compare the rank of y at a row with that at the row's nearest neighbour. R_i counts the rows j with
y_j ≤ y_i and L_i those with y_j ≥ y_i; ties in y need no breaking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from excise._support import checks
from excise.errors import InputError, UndefinedWarning, warn
from excise.statistics._neighbors import Floats, Ints, as_floats, cells_of, nearest, scaled

RandomState = int | np.random.Generator | None
Perturb = Literal["predictors", "all"]


def xi(x: Any, y: Any, *, random_state: RandomState = None) -> float:
    """Chatterjee's ξ: how far y is a function of x, from 0 (independent) to 1 (y = f(x)).

    With the rows sorted by x (ties at random),

        ξ = 1 - n Σ |R_{i+1} - R_i| / (2 Σ L_i (n - L_i)).

    Args:
        x: One column of n values.
        y: One column of n values.
        random_state: Seed or generator for breaking ties in x; without ties it changes nothing.

    Returns:
        The coefficient, NaN (with a warning) where y is constant. In a sample it can be a little below 0, and
        reaches (n-2)/(n+1) at the most without ties.

    >>> xi([1, 2, 3, 4, 5], [1, 4, 9, 16, 25])  # (n-2)/(n+1)
    0.5
    """
    x, y = checks.vector(x, "x"), checks.vector(y, "y")
    n = checks.same_length(x=x, y=y)
    shuffle = checks.apart_from(checks.generator(random_state)).permutation(n)
    above, below = ranks(y[shuffle])
    spread = 2 * _sum_of_products(below, n - below)
    if spread == 0:
        return _undefined("y is constant, so no share of its variation can be explained")
    path = above[np.argsort(x[shuffle], kind="stable")]
    return 1 - n * float(np.abs(np.diff(path)).sum()) / spread


def codec(y: Any, z: Any, x: Any = None, *, random_state: RandomState = None) -> float:
    """CODEC, T(Y, Z | X): the share of what x leaves unknown about y that z explains, from 0 to 1.

    T is 0 if and only if y is independent of z given x, and 1 if and only if y is a function of z given x. With M(i)
    the nearest neighbour of row i in (x, z) and N(i) that in x alone,

        T(Y, Z | X) = Σ (min(R_i, R_M(i)) - min(R_i, R_N(i))) / Σ (R_i - min(R_i, R_N(i))),
        T(Y, Z)     = Σ (n min(R_i, R_M(i)) - L_i²) / Σ L_i (n - L_i).

    Distances are Euclidean in the values as given: bring columns of different units to one scale first.

    Args:
        y: One column of n values.
        z: One or many columns.
        x: One or many columns to condition on; None for the unconditional T(Y, Z).
        random_state: Seed or generator for choosing among equally near neighbours; without ties it changes nothing.

    Returns:
        The coefficient; NaN with a warning where it is undefined: y is constant, or x already determines it.

    >>> codec([1, 2, 3], [0, 2, 3])
    0.25
    """
    y, z, x = _checked(y, z, x)
    return _codec(y, z, x, checks.generator(random_state))


def lcodec(
    y: Any,
    z: Any,
    x: Any = None,
    *,
    noise: float | None = None,
    perturb: Perturb = "predictors",
    random_state: RandomState = None,
) -> float:
    """L-CODEC: CODEC of randomly perturbed variables, which need no tie-breaking.

    With ``noise=None`` the perturbation is smaller than any gap between distinct values, so that it moves nothing but
    ties: its only effect is which of the equally near rows is nearest. That is drawn directly, each with equal
    probability, so no digits of the data are lost and it has the distribution of ``codec``; with noise of a given size
    it does not.

    y keeps its ties by default: ranks handle them, and perturbing a y with K equally likely values changes what is
    estimated (y = z would score 1 - 1/K instead of 1).

    Args:
        y: One column of n values.
        z: One or many columns.
        x: One or many columns to condition on, or None.
        noise: Standard deviation of the Gaussian noise added to every value; None for the vanishing one.
        perturb: ``"predictors"`` (z and x), or ``"all"``, the paper's literal form, which perturbs y as well.
        random_state: Seed or generator.

    Returns:
        The coefficient, as in ``codec``.

    >>> labels = [0, 1] * 200
    >>> lcodec(labels, labels, random_state=0)
    1.0
    >>> round(lcodec(labels, labels, perturb="all", random_state=0), 1)  # 1 - 1/2
    0.5
    """
    y, z, x = _checked(y, z, x)
    rng = checks.generator(random_state)
    y, z, x = perturbed(rng, y, z, x, noise=noise, perturb=perturb)
    return _codec(y, z, x, rng)


@dataclass(frozen=True)
class CodecTest:
    """Outcome of a test of (conditional) independence."""

    statistic: float
    """T(Y, Z | X) of the data."""
    pvalue: float
    """Share of permutations, the data among them, with a T at least as large."""


def codec_test(
    y: Any, z: Any, x: Any = None, *, n_permutations: int = 999, random_state: RandomState = None
) -> CodecTest:
    """Permutation test of whether y is independent of z (given x), with T as its statistic.

    Without x, y is permuted freely: the p-value is exact. With a discrete x, y is permuted among rows equal in x: exact
    too. With a continuous x it is permuted within pairs and threes of neighbours in x, which keeps its relation to x
    only as far as y hardly changes between neighbours. Where it does (little noise and many columns of x), z can tell
    what x is between the rows, and the test rejects too often: no sample of that size can separate the two.

    Args:
        y: One column of n values.
        z: One or many columns.
        x: One or many columns to condition on, or None.
        n_permutations: How many permutations to draw; the smallest possible p-value is 1/(n_permutations + 1).
        random_state: Seed or generator.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=200)
    >>> codec_test(z**2, z, random_state=0).pvalue
    0.001
    """
    y, z, x = _checked(y, z, x)
    if isinstance(n_permutations, bool) or not isinstance(n_permutations, int | np.integer) or n_permutations < 1:
        raise InputError(f"n_permutations must be a positive integer, not {n_permutations!r}; 999 is usual.")
    rng = checks.generator(random_state)
    above, below = ranks(y)
    if _is_constant(below):
        nan = _undefined("y is constant, so there is nothing to test")
        return CodecTest(statistic=nan, pvalue=nan)
    near = nearest(_points(z, x), checks.key(rng))
    near_given = None if x is None else nearest(_points(x), checks.key(rng))
    group = np.zeros(len(y), dtype=np.int64) if x is None else _groups_of_neighbors(_points(x))

    def gain(rank: Ints) -> float:
        """T's numerator; unlike T it is defined for every permutation."""
        mates = np.minimum(rank, rank[near]).sum()
        return float(mates if near_given is None else mates - np.minimum(rank, rank[near_given]).sum())

    observed = gain(above)
    if near_given is None:
        value = _unconditional(observed, below)
    else:
        value = _ratio(np.minimum(above, above[near]).sum(), *_given(above, near_given))
    if np.isnan(value):
        return CodecTest(statistic=value, pvalue=value)
    order = np.argsort(group, kind="stable")
    exceeded = 0
    for _ in range(n_permutations):
        permuted = np.empty_like(above)
        permuted[order] = above[np.lexsort((rng.random(len(y)), group))]
        exceeded += gain(permuted) >= observed
    return CodecTest(statistic=value, pvalue=(1 + exceeded) / (1 + n_permutations))


def ranks(y: Any) -> tuple[Ints, Ints]:
    """R and L: how many values are ≤ and ≥ each value of y (scipy's max ranks of y and of -y)."""
    ordered = np.sort(y)
    return np.searchsorted(ordered, y, side="right"), len(y) - np.searchsorted(ordered, y, side="left")


def perturbed(
    rng: np.random.Generator, y: Any, *columns: Any, noise: float | None, perturb: Perturb
) -> tuple[Any, ...]:
    """Y and the columns after L-CODEC's perturbation; what is not perturbed comes back as it is."""
    checks.choice(perturb, ("predictors", "all"), "perturb")
    if noise is not None and not (isinstance(noise, int | float | np.number) and 0 <= noise < np.inf):
        raise InputError(f"noise must be None or a non-negative number, not {noise!r}; it is a standard deviation.")
    if noise or perturb == "all":
        rng = checks.apart_from(rng)
    if noise:
        columns = tuple(None if part is None else _noisy(part, noise, rng) for part in columns)
    if perturb == "all":
        y = _with_ties_broken(y, rng) if noise is None else _noisy(y, noise, rng)
    return y, *columns


def _noisy(values: Any, noise: float, rng: np.random.Generator) -> Floats:
    with np.errstate(over="ignore"):
        blurred: Floats = values + rng.normal(0.0, noise, values.shape)
    if not np.isfinite(blurred).all():
        raise InputError(f"noise={noise!r} makes some values infinite; choose less.")
    return blurred


def _with_ties_broken(y: Any, rng: np.random.Generator) -> Ints:
    """What a vanishing perturbation makes of y: its ranks, equal values in random order."""
    broken = np.empty(len(y), dtype=np.int64)
    broken[np.lexsort((rng.random(len(y)), y))] = np.arange(len(y))
    return broken


def _checked(y: Any, z: Any, x: Any) -> tuple[Any, Any, Any]:
    y, z = checks.vector(y, "y"), checks.matrix(z, "z")
    if x is None:
        checks.same_length(y=y, z=z)
        return y, z, None
    x = checks.matrix(x, "x")
    checks.same_length(y=y, z=z, x=x)
    return y, z, x


def _codec(y: Any, z: Any, x: Any, rng: np.random.Generator) -> float:
    above, below = ranks(y)
    if _is_constant(below):
        return _undefined("y is constant, so no share of its variation can be explained")
    near = nearest(_points(z, x), checks.key(rng))
    mates = np.minimum(above, above[near]).sum()
    if x is None:
        return _unconditional(mates, below)
    return _ratio(mates, *_given(above, nearest(_points(x), checks.key(rng))))


def _unconditional(mates: float, below: Ints) -> float:
    n = len(below)
    return (n * float(mates) - _sum_of_products(below, below)) / _sum_of_products(below, n - below)


def _sum_of_products(a: Ints, b: Ints) -> float:
    """In floating point: for millions of rows, whole numbers of 64 bits would overflow."""
    return float(a.astype(np.float64) @ b.astype(np.float64))


def _given(rank: Ints, near_given: Ints) -> tuple[float, float]:
    """Σ min(R_i, R_N(i)) and Σ R_i: what is known from x, and all there is to know."""
    return float(np.minimum(rank, rank[near_given]).sum()), float(rank.sum())


def _ratio(mates: float, known: float, everything: float) -> float:
    if everything == known:
        return _undefined("x determines y already, so nothing is left to explain")
    return float((mates - known) / (everything - known))


def _points(z: Any, x: Any = None) -> Floats:
    points = as_floats(z) if x is None else np.column_stack((as_floats(x), as_floats(z)))
    return scaled(points, np.frexp(np.abs(points).max())[1])


def _is_constant(below: Ints) -> bool:
    return bool(below.min() == len(below))


def _undefined(reason: str) -> float:
    warn(f"T is undefined: {reason}; returning NaN.", UndefinedWarning)
    return float("nan")


def _groups_of_neighbors(points: Floats) -> Ints:
    """Which rows may change places: equal rows where x is discrete, else two or three neighbours.

    x counts as discrete when most rows have an equal one; a row without is left in its place.
    """
    cells = cells_of(points)
    if np.mean(cells.sizes[cells.of] > 1) > 0.5:
        return cells.of
    spread = points.std(axis=0)
    points = points / np.where(spread > 0, spread, 1.0)
    group = np.empty(len(points), dtype=np.int64)
    count, stack = 0, [np.arange(len(points))]
    while stack:  # halve along the widest column until no more than three are left
        rows = stack.pop()
        if len(rows) <= 3:
            group[rows] = count
            count += 1
        else:
            widest = int(np.argmax(np.ptp(points[rows], axis=0)))
            rows = rows[np.argsort(points[rows, widest], kind="stable")]
            stack += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return group
