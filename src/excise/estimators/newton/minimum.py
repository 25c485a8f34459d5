"""Newton's method until the minimum is certified to be near."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from excise.estimators.kept import Floats
from excise.estimators.newton.linear import DENSE
from excise.estimators.newton.objective import UNIT, Objective, Point
from excise.estimators.newton.steps import Steps, steps_for

MOST_STEPS = 100
FALL = 0.01
"""A step is taken if the objective falls by this share of what its slope promises."""
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
    way: Steps
    """What solved for them, made at a point near the minimum if it is worth keeping."""
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
    way = steps or steps_for(point)
    best = nowhere = Minimum(start, np.inf, 0.0, 0, way, rounded=False)
    for taken in range(MOST_STEPS):
        step = way.step(point)
        bound = point.distance(step)
        moved = float(np.linalg.norm(point.weights - start))
        length = float(np.linalg.norm(point.weights)) if of_length else moved - bound
        near = bound <= tolerance * length
        flat = float(point.gradient @ step.direction) <= _unsure(objective, point)
        stuck = np.linalg.norm(point.gradient) <= 2 * point.rounding or (flat and bound > best.bound / 2)
        following = None if near or stuck else _descend(objective, point, step.direction)
        if following is None or flat:
            if not way.sure(point):  # the step is good, but not its bound
                way, best = way.renewed(point), nowhere
                continue
            if bound < best.bound:
                best = Minimum(point.weights, bound, moved, taken, way, rounded=not near)
        if following is None:
            return best
        point = following
    return best


def _descend(objective: Objective, point: Point, direction: Floats) -> Point | None:
    """The next point: a Newton step, or one that is shorter; None where the objective falls nowhere."""
    for trial in _trials(point, direction):
        other = objective.at(point.weights - trial)
        fall = FALL * float(point.gradient @ trial)
        if other.value <= point.value - fall + _unsure(objective, point):
            return other
    return None


def _trials(point: Point, direction: Floats) -> Iterator[Floats]:
    """The step, halves of it, then steps with more and more curvature added (Levenberg), which turn downhill."""
    yield from (direction, direction / 2, direction / 4)
    size = len(point.weights)
    if size > DENSE:
        yield from (direction / 2**halvings for halvings in range(3, 50))
        return
    values, vectors = np.linalg.eigh(point.hessian())
    along = vectors.T @ point.gradient
    for power in range(-10, 20):
        yield vectors @ (along / (np.maximum(values, 0.0) + 4.0**power * point.stiffness / size))


def _unsure(objective: Objective, point: Point) -> float:
    """Rounding of the objective."""
    return 64 * UNIT * max(abs(point.value), objective.total)
