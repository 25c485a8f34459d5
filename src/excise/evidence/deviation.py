"""How far a model's answers lie from where retrained models put them, each sample against its own spread over these.

Two trainings never answer alike, so a distance means little by itself. Here every sample has its own yardstick: the
standard deviation of its score over retrained models. |z| is the distance in that unit, and every retrained model,
left out in turn and held against the others, shows what |z| is by chance: the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError
from excise.evidence.gap import Gap

Floats = NDArray[np.float64]

PRIOR_MODELS = 4  # a sample's own variance is mixed with the average one as if that came from so many models more
FEWEST_MODELS = 3  # retrained: with one left out, two must remain to have a spread


@dataclass(frozen=True)
class Deviation:
    """A mean of z, or of |z|, over some samples: of the original, the unlearned and every retrained model."""

    original: float
    unlearned: float
    retrained: tuple[float, ...]
    """Of each, left out in turn and held against the others: what there is by chance."""
    samples: int

    @property
    def floor(self) -> float:
        """What a retrained model gets, on average."""
        return float(np.mean(self.retrained))

    @property
    def gap(self) -> Gap:
        """On the scale from the original (1) to another retraining (0)."""
        return Gap(self.unlearned, self.original, self.floor)

    @property
    def beyond_usual(self) -> float:
        """How many times the larger of the original's and the farthest retrained model's the unlearned model's is."""
        return self.unlearned / max(self.original, *self.retrained)


@dataclass(frozen=True)
class Deviations:
    """Mean |z| on each group of samples, and on the forgotten ones z with its sign."""

    forget: Deviation
    retain: Deviation
    test: Deviation
    forget_signed: Deviation
    """Above 0 where the samples are known better than to retrained models, below 0 where they are answered worse."""


def deviations(
    original: Sequence[Floats], unlearned: Sequence[Floats], retrained: Sequence[Sequence[Floats]]
) -> Deviations | None:
    """Mean |z| of both models and its floor; None with fewer than three retrained models, and where these agree.

    Args:
        original: How well the model before knows the forgotten, the retained and the test samples, an array each
            (``GroupPredictions.scores``).
        unlearned: The same of the model after.
        retrained: The same of every retrained model.
    """
    if len(retrained) < FEWEST_MODELS:
        return None
    groups = [
        (before, after, np.array(others))
        for before, after, *others in zip(original, unlearned, *retrained, strict=True)
    ]
    try:
        forget, retain, test = (deviation(*group) for group in groups)
        return Deviations(forget, retain, test, deviation(*groups[0], signed=True))
    except InputError:  # retrained models that agree, as where training has one outcome, have no spread to measure by
        return None


def deviation(original: Floats, unlearned: Floats, retrained: Floats, *, signed: bool = False) -> Deviation:
    """The mean of |z|, or of z, over samples.

    Args:
        original: Scores of n samples under the model before.
        unlearned: The same under the model after.
        retrained: The same under K retrained models, K × n.
        signed: Whether to keep the sign.

    >>> retrained = np.array([[-1.0, 1.0], [0.0, 0.0], [1.0, -1.0]])  # mean 0 and variance 1 at both samples
    >>> found = deviation(np.array([6.0, 2.0]) / 3**0.5, np.array([2.0, -2.0]) / 3**0.5, retrained)
    >>> round(found.original, 6), round(found.unlearned, 6)  # divided by √(1 + 1/3)
    (2.0, 1.0)
    """

    def mean(z: Floats) -> float:
        return float(np.mean(z if signed else np.abs(z)))

    return Deviation(
        original=mean(deviations_of(original, retrained)),
        unlearned=mean(deviations_of(unlearned, retrained)),
        retrained=tuple(mean(z) for z in left_out_deviations(retrained)),
        samples=len(original),
    )


def deviations_of(one: Floats, others: Floats) -> Floats:
    """How many standard deviations of a prediction a model's scores lie above the others' means: z of every sample.

    The deviation is √(1 + 1/K) times the spread between the K others, as their mean itself is uncertain. Each variance
    is shrunk to the average over samples, since few models tell little of it.
    """
    count = len(others)
    own = others.var(axis=0, ddof=1)
    average = own.mean()
    if average == 0:
        raise InputError(
            "retrained has models that agree on every sample, so there is no spread to measure by; train them with "
            "different seeds, or, where training has one outcome (a convex objective), compare margins directly."
        )
    variance = ((count - 1) * own + PRIOR_MODELS * average) / (count - 1 + PRIOR_MODELS)
    z: Floats = (one - others.mean(axis=0)) / np.sqrt(variance * (1 + 1 / count))
    return z


def left_out_deviations(retrained: Floats) -> Floats:
    """Deviations of every retrained model from the others, in rows."""
    return np.array([deviations_of(one, np.delete(retrained, k, axis=0)) for k, one in enumerate(retrained)])
