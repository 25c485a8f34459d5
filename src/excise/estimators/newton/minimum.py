"""Newton's method until the minimum is certified to be near."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from excise.estimators.kept import Floats
from excise.estimators.newton.objective import UNIT, Objective, Point
from excise.estimators.newton.steps import Steps, steps_for

MOST_STEPS = 100
FINISHED = 1e-9
"""Of the length of the weights: as near as a minimum is found from which moves are counted."""


@dataclass(frozen=True)
class Minimum:
    """Weights that are near a minimum for sure."""

    weights: Floats
    bound: float
    """They are at most this far from it."""
    moved: float
    """How far they are from where moves are counted from."""
    steps: int
    """Newton steps that were taken."""
    rounded: bool
    """Whether rounding stopped it before it was as near as was asked."""


def minimise(
    objective: Objective,
    start: Floats,
    *,
    tolerance: float,
    steps: Steps | None = None,
    of_length: bool = False,
) -> Minimum:
    """The minimum, to a share of the distance moved to it (or of the length of the weights).

    Args:
        objective: What to minimise.
        start: Where to begin, and where moves are counted from.
        tolerance: The largest bound, as a share of the distance moved.
        steps: How to solve for steps; made at the start if None.
        of_length: Whether the tolerance is a share of the length of the weights instead.

    The bound is infinite where no minimum was found: rows can be so few that there is none.
    """
    point = objective.at(start)
    steps = steps or steps_for(point)
    best = Minimum(start, np.inf, 0.0, 0, rounded=False)
    for taken in range(MOST_STEPS):
        step = steps.step(point)
        bound = point.distance(step)
        moved = float(np.linalg.norm(point.weights - start))
        length = float(np.linalg.norm(point.weights)) if of_length else moved - bound
        if bound <= tolerance * length:
            return Minimum(point.weights, bound, moved, taken, rounded=False)
        flat = float(point.gradient @ step.direction) <= _unsure(objective, point)
        stuck = np.linalg.norm(point.gradient) <= 2 * point.rounding or (flat and bound > best.bound / 2)
        if bound < best.bound:
            best = Minimum(point.weights, bound, moved, taken, rounded=True)
        if stuck and np.isfinite(best.bound):
            return best
        following = _descend(objective, point, step.direction)
        if following is None:
            return best
        point = following
    return best


def _descend(objective: Objective, point: Point, direction: Floats) -> Point | None:
    """The point after a Newton step, halved until the objective falls as it should; None where it does not."""
    expected = float(point.gradient @ direction)
    unsure = _unsure(objective, point)
    pace = 1.0
    for _ in range(50):
        other = objective.at(point.weights - pace * direction)
        if other.value <= point.value - 1e-4 * pace * expected + unsure:
            return other
        pace /= 2
    return None


def _unsure(objective: Objective, point: Point) -> float:
    """Rounding of the objective."""
    return 64 * UNIT * max(abs(point.value), objective.total)
