"""How far is an unlearned model from a retrained one, on a scale from 0 (as good as another retraining) to 1 (nothing)?

All functions take logits (rows × classes). Several retrained models are compared with each other too: that floor is
what no method can be told from. A model whose outputs were merely softened must not pass, so the divergence is also
measured after every model's temperature is fitted to the retrained ones on held-out samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Logits:
    """What a model says about the forgotten samples and about held-out ones."""

    forget: Floats
    held_out: Floats

    def at_temperature(self, temperature: float) -> Logits:
        """The same, softened (above 1) or sharpened."""
        return Logits(self.forget / temperature, self.held_out / temperature)


@dataclass(frozen=True)
class Gap:
    """Sums that can be added up over seeds before they are divided."""

    model: float
    """Distance of the model to the retrained ones."""
    original: float
    """Distance of the original model to them."""
    floor: float
    """Distance of the retrained ones to each other."""

    @property
    def share(self) -> float:
        """What is left of the way: 0 as good as another retraining, 1 nothing forgotten; NaN where there was none."""
        way = self.original - self.floor
        return (self.model - self.floor) / way if way else math.nan

    def __add__(self, other: Gap) -> Gap:
        return Gap(self.model + other.model, self.original + other.original, self.floor + other.floor)

    @classmethod
    def pooled(cls, gaps: Sequence[Gap]) -> Gap:
        """Their sum, whose share is that of all of them together.

        >>> Gap.pooled([Gap(2.0, 4.0, 1.0), Gap(1.0, 2.0, 0.0)]).share
        0.4
        """
        return sum(gaps[1:], gaps[0])

    @classmethod
    def mean(cls, gaps: Sequence[Gap]) -> Gap:
        """Their mean, part by part."""
        return cls(*(float(np.mean([getattr(gap, part) for gap in gaps])) for part in ("model", "original", "floor")))


def divergence(retrained: Floats, logits: Floats) -> float:
    """Mean of KL(retrained ‖ model) over the rows.

    >>> divergence(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0]]))
    0.0
    """
    p, q = log_softmax(retrained, axis=1), log_softmax(logits, axis=1)
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))


def fit_temperature(logits: Floats, retrained: Sequence[Floats]) -> float:
    """The temperature at which the model is nearest to the retrained ones.

    >>> sharp = np.array([[2.0, 0.0], [0.0, 4.0], [1.0, 0.0]])
    >>> round(fit_temperature(sharp, [sharp / 3]), 3)
    3.0
    """

    def mismatch(log_temperature: float) -> float:
        return float(np.mean([divergence(one, logits / np.exp(log_temperature)) for one in retrained]))

    return float(np.exp(minimize_scalar(mismatch, bounds=(-4, 4), method="bounded", options={"xatol": 1e-6}).x))


def divergence_gap(
    model: Logits,
    original: Logits,
    retrained: Sequence[Logits],
    *,
    calibrated: bool,
    on: Literal["forget", "held_out"] = "forget",
) -> Gap:
    """Divergence from the retrained models, plain or at temperatures fitted on the held-out samples.

    With a single retrained model the floor is not known, and NaN.
    """

    def distance(one: Logits, others: Sequence[Logits]) -> float:
        if calibrated:
            one = one.at_temperature(fit_temperature(one.held_out, [other.held_out for other in others]))
        return float(np.mean([divergence(getattr(other, on), getattr(one, on)) for other in others]))

    pairs = [distance(a, [b]) for a, b in permutations(retrained, 2)]
    floor = float(np.mean(pairs)) if pairs else float("nan")
    return Gap(distance(model, retrained), distance(original, retrained), floor)


def margin_gap(
    model: Logits,
    original: Logits,
    retrained: Sequence[Logits],
    labels: NDArray[np.int64],
    held_out_labels: NDArray[np.int64],
) -> Gap:
    """Squared distance of the forgotten samples' margins to the retrained models' mean; softening does not help.

    A margin is the log-odds of the true class, standardised by the model's own margins on held-out samples.
    """

    def margins(one: Logits) -> Floats:
        usual = log_odds(one.held_out, held_out_labels)
        standard: Floats = (log_odds(one.forget, labels) - usual.mean()) / usual.std()
        return standard

    each = np.array([margins(one) for one in retrained])
    mean = each.mean(axis=0)

    def distance(one: Floats) -> float:
        return float(np.sum((one - mean) ** 2))

    # a retrained model is compared with the mean of the others, as the model is with the mean of all
    spread = np.sum(each.var(axis=0, ddof=1)) * (1 + 1 / len(each)) if len(each) > 1 else float("nan")
    return Gap(distance(margins(model)), distance(margins(original)), float(spread))


def average_gap(model: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """Avg. Gap: the mean distance of a model's figures, such as UA, RA, TA and MIA, to those of a retrained one.

    >>> round(average_gap({"UA": 0.10, "RA": 0.99}, {"UA": 0.16, "RA": 1.00}), 3)
    0.035
    """
    return float(np.mean([abs(model[name] - retrained[name]) for name in retrained]))


def tug_of_war(model: Sequence[float], retrained: Sequence[float]) -> float:
    """ToW: the product of 1 - |difference| of the accuracies on forgotten, retained and test samples; 1 is best.

    >>> round(tug_of_war([0.5, 1.0, 0.9], [0.6, 1.0, 0.9]), 3)
    0.9
    """
    return float(np.prod([1 - abs(a - b) for a, b in zip(model, retrained, strict=True)]))


def log_odds(logits: Floats, labels: NDArray[np.int64]) -> Floats:
    """The margin log p / (1 - p) of each row's label.

    >>> log_odds(np.log([[0.8, 0.1, 0.1]]), np.array([0])).round(4).tolist()  # log 4
    [1.3863]
    """
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    odds: Floats = logits[rows, labels] - logsumexp(others, axis=1)
    return odds
