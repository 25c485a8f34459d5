"""How far is an unlearned model from a retrained one, on a scale from 0 (as good as another retraining) to 1 (nothing)?

All functions take logits (rows × classes). Several retrained models are compared with each other too: that floor is
what no method can be told from. A model whose outputs were merely softened must not pass, so the divergence is also
measured after every model's temperature is fitted to the retrained ones on held-out samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

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
        """What is left of the way: 0 as good as another retraining, 1 nothing forgotten."""
        return (self.model - self.floor) / (self.original - self.floor)

    def __add__(self, other: Gap) -> Gap:
        return Gap(self.model + other.model, self.original + other.original, self.floor + other.floor)


def divergence(truth: Floats, logits: Floats) -> float:
    """Mean of KL(truth ‖ model) over the rows.

    >>> divergence(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0]]))
    0.0
    """
    p, q = log_softmax(truth, axis=1), log_softmax(logits, axis=1)
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))


def fit_temperature(logits: Floats, truths: Sequence[Floats]) -> float:
    """The temperature at which the model is nearest to the retrained ones.

    >>> sharp = np.array([[2.0, 0.0], [0.0, 4.0], [1.0, 0.0]])
    >>> round(fit_temperature(sharp, [sharp / 3]), 3)
    3.0
    """

    def mismatch(log_temperature: float) -> float:
        return float(np.mean([divergence(truth, logits / np.exp(log_temperature)) for truth in truths]))

    return float(np.exp(minimize_scalar(mismatch, bounds=(-4, 4), method="bounded", options={"xatol": 1e-6}).x))


def divergence_gap(model: Logits, original: Logits, retrained: Sequence[Logits], *, calibrated: bool) -> Gap:
    """Divergence from the retrained models on the forgotten samples, plain or at fitted temperatures."""

    def distance(one: Logits, others: Sequence[Logits]) -> float:
        if calibrated:
            one = one.at_temperature(fit_temperature(one.held_out, [other.held_out for other in others]))
        return float(np.mean([divergence(other.forget, one.forget) for other in others]))

    floor = np.mean([distance(a, [b]) for a, b in permutations(retrained, 2)])
    return Gap(distance(model, retrained), distance(original, retrained), float(floor))


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
        usual = _log_odds(one.held_out, held_out_labels)
        standard: Floats = (_log_odds(one.forget, labels) - usual.mean()) / usual.std()
        return standard

    each = np.array([margins(one) for one in retrained])
    mean = each.mean(axis=0)

    def distance(one: Floats) -> float:
        return float(np.sum((one - mean) ** 2))

    # a retrained model is compared with the mean of the others, as the model is with the mean of all
    spread = np.sum(each.var(axis=0, ddof=1)) * (1 + 1 / len(each))
    return Gap(distance(margins(model)), distance(margins(original)), float(spread))


def _log_odds(logits: Floats, labels: NDArray[np.int64]) -> Floats:
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    odds: Floats = logits[rows, labels] - logsumexp(others, axis=1)
    return odds
