"""Does a model treat forgotten samples like samples that it never saw? Their losses are compared, class by class.

Losses that are lower than those of held-out samples are a trace of the training; higher ones are a trace of the
forgetting, and give the samples away as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, norm, rankdata, t

from excise._support.checks import whole
from excise.errors import InputError
from excise.task.targets import are_classes

Floats = NDArray[np.float64]
Verdict = Literal["lower", "similar", "higher"]
IntervalBy = Literal["Student t, spread of the held-out", "Student t", "bootstrap"]
LEVEL = 0.05
STUDENT_SAMPLES = 20  # up to so many forgotten samples Student's t gives the interval, then the bootstrap
PERMUTED_SAMPLES = 50  # up to so many the rank sum is permuted, then taken to be normal


@dataclass(frozen=True)
class HeldOutComparison:
    """How forgotten samples' losses compare with those of held-out samples of the same classes."""

    verdict: Verdict
    """Of the forgotten samples' losses: lower or higher where p is below 0.05, else similar, as far as can be told."""
    p: float
    """Two-sided: how often chance alone would put the losses so far apart (Mann–Whitney, within classes)."""
    above: float
    """How often a forgotten sample's loss is above that of a held-out one of its class: 0.5 where they are alike."""
    mean: float
    median: float
    held_out_mean: float
    """Held-out samples are weighted so that each class has the share that it has of the forgotten ones."""
    held_out_median: float
    difference: float
    """Mean of the forgotten less mean of the held-out."""
    interval: tuple[float, float]
    """Where the difference lies with 95 % confidence."""
    interval_by: IntervalBy
    """How the interval was made: by the bootstrap for more than 20 samples; for fewer by Student's t (Welch), which
    is wider; for a single one with the held-out samples' spread in place of its own."""
    count: int
    held_out_count: int
    """How many held-out samples were of the classes compared."""


def against_held_out(
    forget_losses: ArrayLike,
    forget_targets: ArrayLike,
    held_out_losses: ArrayLike,
    held_out_targets: ArrayLike,
    *,
    seed: int = 0,
    permutations: int = 9_999,
    resamples: int = 1_999,
) -> HeldOutComparison:
    """Are the forgotten samples' losses like those of held-out samples of the same classes?

    Where targets are not one whole number per sample (several labels, or a number to predict), all held-out samples
    are compared. With up to 50 forgotten samples p is exact but for the chance of the permutations.

    Args:
        forget_losses: Of the forgotten samples.
        forget_targets: Their classes, or what else they should be answered with.
        held_out_losses: Of samples that the model never saw.
        held_out_targets: Their targets.
        seed: Of permutations and bootstrap.
        permutations: Of the rank test.
        resamples: Of the bootstrap.

    >>> found = against_held_out([0.0, 0.1, 0.2, 0.1], [3] * 4, [1.0, 2.0, 3.0, 4.0, 5.0], [3, 3, 3, 3, 8])
    >>> found.verdict, found.above, found.held_out_mean, round(found.difference, 6)
    ('lower', 0.0, 2.5, -2.4)
    """
    rng = np.random.default_rng(whole(seed, "seed", 0))
    whole(permutations, "permutations")
    whole(resamples, "resamples")
    mine, others = _losses(forget_losses, "forget_losses"), _losses(held_out_losses, "held_out_losses")
    strata, other_strata = _strata(
        _targets(forget_targets, mine, "forget_targets"), _targets(held_out_targets, others, "held_out_targets")
    )
    usable = np.isin(other_strata, strata)
    others, other_strata = others[usable], other_strata[usable]
    if len(others) < 2:
        raise InputError(
            "held_out_losses has 1 sample of the forgotten classes; at least 2 are needed to compare with."
        )
    weights = _weights(strata, other_strata)
    held_out_mean = float(weights @ others)
    above, p = _rank_test(mine, strata, others, other_strata, rng, permutations)
    # the weighted mean is the plain mean of these, and varies as theirs (it is a ratio, linearised)
    leveled = held_out_mean + len(others) * weights * (others - held_out_mean)
    interval, interval_by = _interval(mine, leveled, rng, resamples)
    return HeldOutComparison(
        verdict="similar" if p >= LEVEL else "lower" if above < 0.5 else "higher",
        p=p,
        above=above,
        mean=float(mine.mean()),
        median=float(np.median(mine)),
        held_out_mean=held_out_mean,
        held_out_median=_weighted_median(others, weights),
        difference=float(mine.mean()) - held_out_mean,
        interval=interval,
        interval_by=interval_by,
        count=len(mine),
        held_out_count=len(others),
    )


def _weights(strata: NDArray[Any], other_strata: NDArray[Any]) -> Floats:
    """Weights of the held-out samples: each class's share of the forgotten, split evenly."""
    weights = np.zeros(len(other_strata))
    for one, often in zip(*np.unique(strata, return_counts=True), strict=True):
        same = other_strata == one
        weights[same] = often / len(strata) / same.sum()
    return weights


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    # at exactly one half, the middle of both neighbours, as in the plain median
    low, high = (values[order[min(int((reached < half).sum()), len(order) - 1)]] for half in (0.5 - 1e-12, 0.5 + 1e-12))
    return float((low + high) / 2)


def _rank_test(
    mine: Floats,
    strata: NDArray[Any],
    others: Floats,
    other_strata: NDArray[Any],
    rng: np.random.Generator,
    permutations: int,
) -> tuple[float, float]:
    """How often a forgotten sample is above a held-out one of its class, and the two-sided p of that.

    In a class with n forgotten and m held-out samples U = Σ ranks of the forgotten − n(n+1)/2 counts the pairs where
    the forgotten one is above (a tie is half a pair); the statistic is Σ U/m over the classes. By chance, any n of
    the n+m could be the forgotten ones.
    """
    total, expected, variance = 0.0, 0.0, 0.0
    by_chance = np.zeros(permutations if len(mine) <= PERMUTED_SAMPLES else 0)
    for one in np.unique(strata):
        here, there = mine[strata == one], others[other_strata == one]
        n, m = len(here), len(there)
        ranks = rankdata(np.concatenate([here, there]))
        least = n * (n + 1) / 2
        total += (ranks[:n].sum() - least) / m
        expected += n / 2
        variance += n * ranks.var(ddof=1) / (m * (n + m))  # drawn without replacement; ties are in the ranks
        if len(by_chance):
            by_chance += (ranks[_subsets(n + m, n, len(by_chance), rng)].sum(axis=1) - least) / m
    if not len(by_chance):
        p = 2 * norm.sf(abs(total - expected) / np.sqrt(variance)) if variance > 0 else 1.0
    else:
        rounding = 1e-9
        below = 1 + np.sum(by_chance <= total + rounding)
        beyond = 1 + np.sum(by_chance >= total - rounding)
        p = 2 * min(below, beyond) / (1 + len(by_chance))
    return float(total / len(mine)), float(min(1.0, p))


def _subsets(total: int, size: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Random subsets of range(total), one a row, all equally likely (Floyd's algorithm)."""
    chosen = np.empty((draws, size), dtype=np.int64)
    for column, last in enumerate(range(total - size, total)):
        drawn = rng.integers(0, last + 1, draws)
        taken = (chosen[:, :column] == drawn[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, last, drawn)
    return chosen


def _interval(
    mine: Floats, others: Floats, rng: np.random.Generator, resamples: int
) -> tuple[tuple[float, float], IntervalBy]:
    """A 95 % interval of the difference of the means, and how it was made."""
    if len(mine) > STUDENT_SAMPLES:
        found = bootstrap(
            (mine, others),
            lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
            n_resamples=resamples,
            method="percentile",
            batch=50,  # bounds the memory
            rng=rng,
        ).confidence_interval
        return (float(found.low), float(found.high)), "bootstrap"
    n, m = len(mine), len(others)
    spread = others.var(ddof=1)
    a, b = (mine.var(ddof=1) if n > 1 else spread) / n, spread / m
    freedom = m - 1 if n == 1 or a + b == 0 else (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))  # Welch
    middle, width = mine.mean() - others.mean(), t.ppf(1 - LEVEL / 2, freedom) * np.sqrt(a + b)
    return (float(middle - width), float(middle + width)), (
        "Student t" if n > 1 else "Student t, spread of the held-out"
    )


def _strata(targets: NDArray[Any], other_targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is compared with what: the classes, or one group of all where there are none."""
    if not (are_classes(targets) and are_classes(other_targets)):
        return np.zeros(len(targets), dtype=np.int64), np.zeros(len(other_targets), dtype=np.int64)
    missing = np.setdiff1d(targets, other_targets)
    if len(missing):
        raise InputError(
            f"held_out_targets has no sample of class {missing[0]}, which forget_targets has; add some to compare with."
        )
    return targets, other_targets


def _losses(values: ArrayLike, name: str) -> Floats:
    losses = np.asarray(values, dtype=np.float64)
    if losses.ndim != 1 or len(losses) == 0:
        raise InputError(f"{name} must be one list of at least one loss, not of shape {losses.shape}.")
    if not np.isfinite(losses).all():
        wrong = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise InputError(f"{name} has {losses[wrong]} at position {wrong}; losses must be finite.")
    return losses


def _targets(values: ArrayLike, losses: Floats, name: str) -> NDArray[Any]:
    targets = np.asarray(values)
    if targets.ndim == 0 or len(targets) != len(losses):
        shape = targets.shape
        raise InputError(f"{name} must have a target for each of the {len(losses)} losses, but has shape {shape}.")
    return targets
