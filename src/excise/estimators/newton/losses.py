"""Losses of one output z and a target t that are convex and have a slope everywhere, as scikit-learn scales them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import expit

from excise.estimators.kept import Floats


class Loss(Protocol):
    """A loss with its two derivatives by z, and what bounds the change of the second."""

    @property
    def bend(self) -> float:
        """|third derivative| ≤ bend · second derivative, wherever there is no kink."""
        ...

    @property
    def kinks(self) -> bool:
        """Whether the second derivative jumps somewhere; between the jumps it is then constant."""
        ...

    def value(self, z: Floats, t: Floats) -> Floats:
        """The loss."""
        ...

    def slope(self, z: Floats, t: Floats) -> Floats:
        """Its derivative by z."""
        ...

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """Its second derivative; at a jump, either of the two."""
        ...

    def room(self, z: Floats, t: Floats) -> Floats:
        """How far z is from the next jump of the second derivative."""
        ...


class Smooth:
    """What losses without jumps have in common."""

    kinks: ClassVar[bool] = False

    def room(self, z: Floats, t: Floats) -> Floats:  # noqa: ARG002
        """There is no jump."""
        return np.full_like(z, np.inf)


class Bent:
    """What losses have in common that are quadratic between jumps of the second derivative."""

    bend: ClassVar[float] = 0.0
    kinks: ClassVar[bool] = True


@dataclass(frozen=True)
class LogLoss(Smooth):
    """log(1 + exp(-tz)), t = ±1."""

    bend: ClassVar[float] = 1.0

    def value(self, z: Floats, t: Floats) -> Floats:
        """log(1 + exp(-tz))."""
        return np.logaddexp(0.0, -t * z)

    def slope(self, z: Floats, t: Floats) -> Floats:
        """-t σ(-tz)."""
        found: Floats = -t * expit(-t * z)
        return found

    def curvature(self, z: Floats, t: Floats) -> Floats:  # noqa: ARG002
        """σ(z) σ(-z)."""
        found: Floats = expit(z) * expit(-z)
        return found


@dataclass(frozen=True)
class SquaredError(Smooth):
    """(z - t)² / 2."""

    bend: ClassVar[float] = 0.0

    def value(self, z: Floats, t: Floats) -> Floats:
        """(z - t)² / 2."""
        return (z - t) ** 2 / 2

    def slope(self, z: Floats, t: Floats) -> Floats:
        """Z - t."""
        return z - t

    def curvature(self, z: Floats, t: Floats) -> Floats:  # noqa: ARG002
        """1."""
        return np.ones_like(z)


@dataclass(frozen=True)
class Tweedie(Smooth):
    """Half the Tweedie deviance of a power from 1 (Poisson) to 2 (Gamma), exp(z) being the mean; convex for these.

    Its second derivative is a sum of exponentials of (1 - power) z and (2 - power) z with factors that are not
    negative, so the third is at most the larger of these exponents times it.
    """

    power: float

    @property
    def bend(self) -> float:
        """The larger exponent."""
        return max(self.power - 1, 2 - self.power)

    def value(self, z: Floats, t: Floats) -> Floats:
        """Without terms that do not depend on z."""
        if self.power == 1:
            return np.exp(z) - t * z
        if self.power == 2:
            return z + t * np.exp(-z)
        p = self.power
        return -t * np.exp((1 - p) * z) / (1 - p) + np.exp((2 - p) * z) / (2 - p)

    def slope(self, z: Floats, t: Floats) -> Floats:
        """exp((2 - p) z) - t exp((1 - p) z)."""
        return np.exp((2 - self.power) * z) - t * np.exp((1 - self.power) * z)

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """(2 - p) exp((2 - p) z) + (p - 1) t exp((1 - p) z)."""
        p = self.power
        return (2 - p) * np.exp((2 - p) * z) + (p - 1) * t * np.exp((1 - p) * z)


@dataclass(frozen=True)
class SquaredHinge(Bent):
    """max(0, 1 - tz)², t = ±1."""

    def value(self, z: Floats, t: Floats) -> Floats:
        """max(0, 1 - tz)²."""
        return np.maximum(0.0, 1 - t * z) ** 2

    def slope(self, z: Floats, t: Floats) -> Floats:
        """-2t max(0, 1 - tz)."""
        return -2 * t * np.maximum(0.0, 1 - t * z)

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """2 within the margin."""
        return np.where(t * z < 1, 2.0, 0.0)

    def room(self, z: Floats, t: Floats) -> Floats:
        """To the margin."""
        return np.abs(1 - t * z)


@dataclass(frozen=True)
class ModifiedHuber(Bent):
    """The squared hinge, that goes on straight where tz < -1."""

    def value(self, z: Floats, t: Floats) -> Floats:
        """max(0, 1 - tz)², or -4tz below -1."""
        return np.where(t * z < -1, -4 * t * z, np.maximum(0.0, 1 - t * z) ** 2)

    def slope(self, z: Floats, t: Floats) -> Floats:
        """-2t max(0, 1 - tz), 4 at most."""
        found: Floats = -2 * t * np.clip(1 - t * z, 0.0, 2.0)
        return found

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """2 between the kinks."""
        return np.where(np.abs(t * z) < 1, 2.0, 0.0)

    def room(self, z: Floats, t: Floats) -> Floats:
        """To -1 or 1."""
        found: Floats = np.abs(1 - np.abs(t * z))
        return found


@dataclass(frozen=True)
class Huber(Bent):
    """(z - t)² / 2, that goes on straight where |z - t| > ε."""

    epsilon: float

    def value(self, z: Floats, t: Floats) -> Floats:
        """Half of the square, or ε |z - t| - ε² / 2."""
        away = np.abs(z - t)
        return np.where(away <= self.epsilon, away**2 / 2, self.epsilon * (away - self.epsilon / 2))

    def slope(self, z: Floats, t: Floats) -> Floats:
        """Z - t, ε at most."""
        return np.clip(z - t, -self.epsilon, self.epsilon)

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """1 near the target."""
        return np.where(np.abs(z - t) <= self.epsilon, 1.0, 0.0)

    def room(self, z: Floats, t: Floats) -> Floats:
        """To t ± ε."""
        return np.abs(np.abs(z - t) - self.epsilon)


@dataclass(frozen=True)
class SquaredInsensitive(Bent):
    """max(0, |z - t| - ε)²."""

    epsilon: float

    def value(self, z: Floats, t: Floats) -> Floats:
        """max(0, |z - t| - ε)²."""
        return np.maximum(0.0, np.abs(z - t) - self.epsilon) ** 2

    def slope(self, z: Floats, t: Floats) -> Floats:
        """Twice what goes past ε, signed."""
        return 2 * np.sign(z - t) * np.maximum(0.0, np.abs(z - t) - self.epsilon)

    def curvature(self, z: Floats, t: Floats) -> Floats:
        """2 outside of ε."""
        return np.where(np.abs(z - t) >= self.epsilon, 2.0, 0.0)

    def room(self, z: Floats, t: Floats) -> Floats:
        """To t ± ε; none to speak of where ε is 0 and the curvature the same on both sides."""
        if self.epsilon <= 0:
            return np.full_like(z, np.inf)
        return np.abs(np.abs(z - t) - self.epsilon)
