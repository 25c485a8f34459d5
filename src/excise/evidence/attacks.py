"""Membership inference attacks: can forgotten samples still be told from samples the model never saw?

An attack turns every sample into a score, higher for what looks more like a training sample, and asks how well the
score tells the two groups apart. **The target is what a retrained model gets, not 0.5**: forgotten samples may be
easier or harder than the others, so even a model that never saw them need not give an AUC of 0.5. Run every attack on
a retrained model too and compare; only ``likelihood_ratio_attack`` has the retrained models built in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, log_expit, log_softmax
from scipy.stats import beta, binom, norm, t

from excise._support.checks import finite, numeric, require, whole
from excise.errors import InputError
from excise.evidence.deviation import FEWEST_MODELS, deviations_of, left_out_deviations
from excise.evidence.gap import log_odds

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Interval = tuple[float, float]

FALSE_POSITIVES = 0.01  # the share of non-members that may be taken for members, for tpr_at_fpr
FEW = 5  # with fewer scores of a kind nothing is known of how they scatter
CURVE_POINTS = 200  # at most, in a ROC curve for a plot
FAR = 2.0  # standard deviations


@dataclass(frozen=True)
class Attack:
    """How well scores tell members from non-members; to be read beside the same attack on a retrained model."""

    auc: float
    """Chance that a member scores above a non-member (ties count half); below 0.5 where members score lower."""
    interval: Interval
    """For the AUC."""
    tpr_at_fpr: float
    """Share of members found while at most 1 % of the non-members are taken for one; NaN with fewer than 100 of these,
    since then not even one may be."""
    tpr_interval: Interval
    balanced_accuracy: float
    """Mean of the true positive and true negative rate at the best threshold. It is chosen with hindsight: never below
    0.5, and well above it by chance where there are few samples."""
    members: int
    non_members: int
    fpr: Floats = field(repr=False, compare=False)
    """The ROC curve, from (0, 0) to (1, 1), thinned for a plot to at most 200 points."""
    tpr: Floats = field(repr=False, compare=False)


@dataclass(frozen=True)
class RatioAttack:
    """How far forgotten samples lie from where retrained models put them, each against its own distribution.

    Here the retrained models are the non-members, so an AUC of 0.5 does mean: as a retrained model. The intervals
    cover the chance in the samples; that two trainings differ on all samples at once is seen in ``retrained_aucs`` and
    ``retrained_changed_aucs``.
    """

    remembered: Attack
    """By z: are samples still known better than to retrained models?"""
    changed: Attack
    """By |z|: are samples unusual in either direction, such as forgotten too much?"""
    mean_z: float
    """0 for a retrained model, on average."""
    beyond: float
    """Share of samples with |z| above 2 ..."""
    retrained_beyond: float
    """... and that share for left-out retrained models, which is the target."""
    retrained_aucs: tuple[float, ...]
    """What each retrained model gets in the place of the unlearned one, against the left-out others, by z ..."""
    retrained_changed_aucs: tuple[float, ...]
    """... and by |z|."""
    z: Floats = field(repr=False, compare=False)
    """One value per sample: how many standard deviations its margin lies above the retrained ones."""


def loss_score(losses: Any) -> Floats:
    """Minus the loss: training samples tend to have small ones.

    >>> loss_score([0.5, 2.0]).tolist()
    [-0.5, -2.0]
    """
    return -finite(losses, "losses", 1)


def confidence(logits: Any, labels: Any) -> Floats:
    """Probability of the true class. Beyond a margin of 37 it is rounded to 1 and samples tie; ``margin`` has no limit.

    >>> confidence([[0.0, 0.0], [1000.0, 0.0]], [0, 1]).tolist()
    [0.5, 0.0]
    """
    result: Floats = expit(margin(logits, labels))
    return result


def margin(logits: Any, labels: Any) -> Floats:
    """Log-odds of the true class, log p/(1−p), which is close to normal over trainings (Carlini et al. 2022).

    >>> margin([[1000.0, 0.0], [0.0, 3.0]], [0, 0]).tolist()
    [1000.0, -3.0]
    """
    return log_odds(*_labelled(logits, labels))


def entropy_score(logits: Any) -> Floats:
    """Minus the entropy of the prediction: 0 for a certain one, whether right or wrong.

    >>> entropy_score([[0.0, 0.0], [1000.0, 0.0]]).round(4).tolist()
    [-0.6931, 0.0]
    """
    log_p = log_softmax(_logits(logits), axis=1)
    result: Floats = np.sum(np.exp(log_p) * log_p, axis=1) + 0.0  # no -0.0
    return result


def modified_entropy_score(logits: Any, labels: Any) -> Floats:
    """Minus the modified entropy of Song & Mittal (2021): 0 for certain and right, very low for certain and wrong.

    Mentr = −(1−p_y) log p_y − Σ_{i≠y} p_i log(1−p_i).

    >>> modified_entropy_score([[1000.0, 0.0], [0.0, 0.0], [1000.0, 0.0]], [0, 0, 1]).round(4).tolist()
    [0.0, -0.6931, -2000.0]
    """
    table, classes = _labelled(logits, labels)
    rows = np.arange(len(table))
    log_p = log_softmax(table, axis=1)
    p, top = np.exp(log_p), table.argmax(axis=1)
    p[rows, top] = 0.5  # put right below; the others are at most that, and log1p is exact for them
    log_rest = np.log1p(-p)  # log(1 − p_i)
    odds = log_odds(table, top)
    p[rows, top], log_rest[rows, top] = expit(odds), log_expit(-odds)
    wrong = p * log_rest
    wrong[rows, classes] = 0
    odds = log_odds(table, classes)
    result: Floats = expit(-odds) * log_expit(odds) + wrong.sum(axis=1) + 0.0  # no -0.0
    return result


def auc(members: Any, non_members: Any) -> float:
    """Chance that a member scores above a non-member, ties counting half; NaN where there are no non-members.

    >>> auc([3.0, 2.0], [2.0, 1.0, 0.0, 0.0])  # 7.5 of 8 pairs
    0.9375
    """
    if len(non_members) == 0:
        return np.nan
    return float(_area(*_runs(finite(members, "members", 1), finite(non_members, "non_members", 1))))


def threshold_attack(
    members: Any, non_members: Any, *, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> Attack:
    """Call a sample a member where its score is above a threshold, and say how well that works over all thresholds.

    The target is the value for a retrained model, not 0.5: see the module's first lines.

    The interval of the AUC is honest for few samples, where resampling alone sees no spread: it is the union of the
    percentile interval of a stratified bootstrap and of a score interval whose variance comes from a model of the
    scores (Hanley & McNeil 1982; Newcombe 2006). With fewer than 5 scores of a kind it also covers the largest variance
    that any scores could have, AUC (1 − AUC) / (fewer of the two), by Clopper and Pearson; one sample says next to
    nothing. The interval of ``tpr_at_fpr`` is exact, but wide: from the order statistics for the threshold (below about
    440 non-members it always reaches down to 0) and from the binomial for the members above it.

    Args:
        members: Scores of forgotten samples, one or more; higher is more like a training sample.
        non_members: Scores of samples that the model never saw.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        level: Of the intervals.

    >>> attack = threshold_attack([3.0, 2.0], [2.0, 1.0, 0.0, 0.0])
    >>> attack.auc  # 7.5 of 8 pairs, since a tie counts half
    0.9375
    >>> attack.balanced_accuracy  # at 2: both members, and 3 of 4 non-members below
    0.875
    """
    inside, outside = finite(members, "members", 1), finite(non_members, "non_members", 1)
    whole(seed, "seed", 0)
    whole(resamples, "resamples")
    require(isinstance(level, float) and 0 < level < 1, "level", level, "a number between 0 and 1, such as 0.95")
    runs = _runs(inside, outside)
    found, mistaken = (np.append(0, np.cumsum(count[::-1])) for count in runs)  # of each kind, from the top down
    tpr, fpr = found / len(inside), mistaken / len(outside)
    some = _thinned(fpr, tpr)
    enough = FALSE_POSITIVES * len(outside) >= 1
    area = float(_area(*runs))
    return Attack(
        area,
        _auc_interval(area, runs, np.random.default_rng(seed), resamples, level),
        float(tpr[fpr <= FALSE_POSITIVES].max()) if enough else np.nan,
        _tpr_interval(found, mistaken, level) if enough else (np.nan, np.nan),
        float((1 + np.max(tpr - fpr)) / 2),
        len(inside),
        len(outside),
        fpr[some],
        tpr[some],
    )


def likelihood_ratio_attack(
    unlearned: Any, retrained: Any, *, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> RatioAttack:
    """Compare every forgotten sample's margin with its own margins under retrained models (U-LiRA, Hayes et al. 2024).

    A sample's z is its distance above the retrained mean, in standard deviations of a prediction: √(1 + 1/K) times the
    spread between K models, as the mean itself is uncertain. With few models a variance is little known, so each is
    shrunk to the average over samples, as if that came from 4 models more. Then every retrained model is left out in
    turn and scored against the others in the same way: those are the non-members, and an AUC of 0.5 says that the
    unlearned model can't be told from a retrained one. Left-out models are measured by one model fewer, which makes
    their |z| a little larger; it matters only for a handful of samples under 3 or 4 models.

    Args:
        unlearned: Margins (``margin``) of the n forgotten samples under the unlearned model.
        retrained: The same under K retrained models, K × n. K is 3 or more: with one left out, two must remain to
            have a spread.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        level: Of the intervals.

    >>> retrained = np.array([[-1.0, 1.0], [0.0, 0.0], [1.0, -1.0]])  # mean 0 and variance 1 at both samples
    >>> attack = likelihood_ratio_attack([6 / 3**0.5, 2 / 3**0.5], retrained)
    >>> attack.z.round(6).tolist(), round(attack.mean_z, 6), attack.beyond  # divided by √(1 + 1/3)
    ([3.0, 1.0], 2.0, 0.5)
    """
    ours, theirs = finite(unlearned, "unlearned", 1), finite(retrained, "retrained", 2)
    if len(theirs) < FEWEST_MODELS:
        raise InputError(
            f"retrained has {len(theirs)} models (rows); the attack leaves one out and needs the spread of the others, "
            "so retrain 3 or more times."
        )
    if theirs.shape[1] != len(ours):
        raise InputError(
            f"retrained has {theirs.shape[1]} samples (columns) and unlearned {len(ours)}; pass models × samples."
        )
    z, left_out = deviations_of(ours, theirs), left_out_deviations(theirs)

    def attack(score: Callable[[Floats], Floats]) -> Attack:
        return threshold_attack(score(z), score(left_out).ravel(), seed=seed, resamples=resamples, level=level)

    def aucs(scores: Floats) -> tuple[float, ...]:
        return tuple(auc(one, np.delete(scores, k, axis=0).ravel()) for k, one in enumerate(scores))

    return RatioAttack(
        attack(np.positive),
        attack(np.abs),
        float(z.mean()),
        float(np.mean(np.abs(z) > FAR)),
        float(np.mean(np.abs(left_out) > FAR)),
        aucs(left_out),
        aucs(np.abs(left_out)),
        z,
    )


def _runs(members: Floats, non_members: Floats) -> tuple[Whole, Whole]:
    """How many members and non-members there are in each run of scores, from the lowest up.

    Neighbouring scores of the same kind are one run: all that an attack depends on, and few where members are few.
    """
    values, which = np.unique(np.concatenate([members, non_members]), return_inverse=True)
    inside = np.bincount(which[: len(members)], minlength=len(values))
    outside = np.bincount(which[len(members) :], minlength=len(values))
    kind = np.where(inside == 0, 0, np.where(outside == 0, 1, 2))  # 2 where both tie: a run of its own
    starts = np.append(0, 1 + np.flatnonzero((kind[1:] != kind[:-1]) | (kind[1:] == 2)))
    return np.add.reduceat(inside, starts), np.add.reduceat(outside, starts)


def _area(inside: Whole, outside: Whole) -> Floats:
    """AUC of runs (last axis): the share of pairs in which the member scores higher, ties counting half."""
    higher = np.sum(inside * (np.cumsum(outside, axis=-1) - outside / 2), axis=-1)
    area: Floats = higher / (inside.sum(axis=-1) * outside.sum(axis=-1))
    return area


def _thinned(fpr: Floats, tpr: Floats) -> NDArray[np.int64]:
    """Positions of few points, evenly along the curve and with both ends."""
    if len(fpr) <= CURVE_POINTS:
        return np.arange(len(fpr))
    way = fpr + tpr
    return np.unique(np.searchsorted(way, np.linspace(0, way[-1], CURVE_POINTS)))


def _auc_interval(
    auc: float, runs: tuple[Whole, Whole], rng: np.random.Generator, resamples: int, level: float
) -> Interval:
    counts = int(runs[0].sum()), int(runs[1].sum())
    intervals = [_bootstrap(runs, rng, resamples, level), _score_interval(auc, *counts, level)]
    if min(counts) < FEW:
        intervals.append(_clopper_pearson(auc * min(counts), min(counts), level))
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def _bootstrap(runs: tuple[Whole, Whole], rng: np.random.Generator, resamples: int, level: float) -> Interval:
    """Percentile interval with members and non-members each drawn anew.

    The percentiles are those of Student's t, further out for few samples, as a resample of m scatters too little by
    √((m−1)/m) (Hesterberg 2015).
    """
    fewer = int(min(count.sum() for count in runs))
    tail = norm.cdf(np.sqrt(fewer / (fewer - 1)) * t.ppf((1 - level) / 2, fewer - 1)) if fewer > 1 else 0.0
    areas = np.concatenate(
        [
            _area(*(_drawn(count, size, rng) for count in runs))
            for size in np.diff(np.append(np.arange(0, resamples, 50), resamples))  # in parts, to keep memory small
        ]
    )
    low, high = np.quantile(areas, [tail, 1 - tail])
    return float(low), float(high)


def _drawn(count: Whole, size: int, rng: np.random.Generator) -> Whole:
    """As many samples drawn with replacement, counted by run, in rows."""
    run = np.repeat(np.arange(len(count)), count)
    drawn = run[rng.integers(0, len(run), (size, len(run)))] + len(count) * np.arange(size)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * len(count)).reshape(size, len(count))


def _score_interval(auc: float, inside: int, outside: int, level: float) -> Interval:
    """All areas θ that are within z standard errors of the AUC, by the standard error at θ and not at the AUC."""
    z = norm.ppf((1 + level) / 2)

    def miss(theta: float) -> float:
        # Hanley & McNeil's variance, with the larger of its two parts for both kinds: it is not known which scatters
        part = max((1 - theta) / (2 - theta), theta / (1 + theta))
        variance = theta * (1 - theta) * (1 + (inside + outside - 2) * part) / (inside * outside)
        return float((auc - theta) ** 2 - z**2 * variance)

    edge = 1e-12  # at 0 and 1 the variance is 0, so a search that ends there must stop short of them
    low = 0.0 if auc < edge else brentq(miss, 0, min(auc, 1 - edge))
    high = 1.0 if auc > 1 - edge else brentq(miss, max(auc, edge), 1)
    return low, high


def _clopper_pearson(hits: float, trials: int, level: float) -> Interval:
    """Exact interval of a proportion; a mean of values between 0 and 1 scatters at most as much."""
    tail = (1 - level) / 2
    low = beta.ppf(tail, hits, trials - hits + 1) if hits > 0 else 0.0
    high = beta.ppf(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def _tpr_interval(found: Whole, mistaken: Whole, level: float) -> Interval:
    """Bounds of the threshold, then of the share of members above it; each may fail half as often."""
    half = (1 + level) / 2
    few, many = binom.interval(half, mistaken[-1], FALSE_POSITIVES)
    # With from `few` to `many` non-members above the true threshold, it lies below the `few`-th highest of them, and
    # not below the next after the `many`-th. Members above the one are above it; those above the other may be.
    least = int(found[mistaken < few].max(initial=0))
    most = int(found[mistaken <= many].max())
    return _clopper_pearson(least, int(found[-1]), half)[0], _clopper_pearson(most, int(found[-1]), half)[1]


def _logits(values: Any) -> Floats:
    logits = finite(values, "logits", 2)
    if logits.shape[1] < 2:
        raise InputError(f"logits has {logits.shape[1]} class (column); pass one column per class, 2 or more.")
    return logits


def _labelled(logits: Any, labels: Any) -> tuple[Floats, Whole]:
    table, classes = _logits(logits), numeric(labels, "labels")
    if classes.shape != (len(table),) or classes.dtype.kind not in "iu":
        raise InputError(
            f"labels must be one whole number per row of logits ({len(table)}), not {classes.dtype} of shape "
            f"{classes.shape}."
        )
    wrong = classes[(classes < 0) | (classes >= table.shape[1])]
    if len(wrong):
        raise InputError(f"labels must be from 0 to {table.shape[1] - 1} (columns of logits), not {wrong[0]}.")
    return table, classes.astype(np.int64)
