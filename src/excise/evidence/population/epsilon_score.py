"""The score of the NeurIPS 2023 unlearning competition: an ε for each forgotten sample, by the best threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from excise.evidence.population.margins import Floats, require_models

DELTA = 1e-5
LARGEST_EPSILON = 50.0
PEAKED = 0.01  # a spread below this share of the other's is told at once
BUCKET = 0.5  # of ε, for which a sample gets half the points of the bucket before


@dataclass(frozen=True)
class EpsilonScore:
    """How private the forgotten samples are, as the competition counts it, before its adjustment by accuracies."""

    score: float
    """From 0 to 1: 1 where every sample has an ε below 0.5."""
    epsilon: float
    """Median over samples."""
    each: Floats = field(repr=False, compare=False)


def epsilon_score(unlearned: Floats, retrained: Floats) -> EpsilonScore:
    """Give every sample the ε of the best attack by one threshold on its margin, or by two.

    All thresholds that tell the models apart in different ways are tried, where the competition tries a grid of them.

    Args:
        unlearned: Margins of the forgotten samples, models × samples.
        retrained: The same of models that never saw them.
    """
    ours, theirs = require_models(unlearned, retrained)
    each = np.array([_epsilon(ours[:, sample], theirs[:, sample]) for sample in range(ours.shape[1])])
    return EpsilonScore(float(np.mean([_points(epsilon, len(ours)) for epsilon in each])), float(np.median(each)), each)


def _points(epsilon: float, models: int) -> float:
    """½ to the number of its bucket; none beyond the largest ε that so many models can show."""
    bucket = math.floor(epsilon / BUCKET)
    return 0.5**bucket if (bucket + 1) * BUCKET <= math.ceil(math.log(models - 1)) else 0.0


def _epsilon(ours: Floats, theirs: Floats) -> float:
    spreads = sorted((np.ptp(ours), np.ptp(theirs)))
    if spreads[0] < PEAKED * spreads[1]:
        return LARGEST_EPSILON
    values = np.unique(np.concatenate([ours, theirs]))
    mine, others = (_shares_at_least(one, values) for one in (ours, theirs))
    one_sided = np.stack([mine, others])
    two_sided = np.stack([(shares[:, None] - shares[None, :]).ravel() for shares in (mine, others)])
    shares = np.concatenate([one_sided, two_sided[:, (two_sided >= 0).all(axis=0)]], axis=1)
    best = max(_largest(shares[0], shares[1]), _largest(shares[1], shares[0]))
    return float(min(best, LARGEST_EPSILON))


def _shares_at_least(values: Floats, thresholds: Floats) -> Floats:
    """The share of the values at or above each threshold, and above all of them."""
    shares = np.mean(values[None, :] >= thresholds[:, None], axis=1)
    return np.append(shares, 0.0)


def _largest(true_positives: Floats, false_positives: Floats) -> float:
    """The largest ε of these attacks; one that never errs on one side alone had too few models to tell."""
    misses, alarms = 1 - true_positives, false_positives
    if np.any((misses <= 0) & (alarms <= 0)):
        return math.inf
    both = (misses > 0) & (alarms > 0)
    misses, alarms = misses[both], alarms[both]
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(1 - DELTA - alarms) - np.log(misses)
        second = np.log(1 - DELTA - misses) - np.log(alarms)
    return float(np.nanmax(np.concatenate([first, second, [0.0]])))
