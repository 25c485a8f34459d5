"""A few steps of L-BFGS, from a curvature that is known in part: the steps learn what it does not say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Value = tuple[float, Tensor]
"""Of a function, and its gradient."""
ENOUGH = 1e-4  # of what the slope promises, that a step must gain (Armijo)
SHORTEST, LONGEST = 0.1, 0.5  # by which a step that gains too little is shortened
MOST_TRIES = 6  # of shorter and shorter steps


@dataclass(frozen=True)
class _Point:
    """Where the function was looked at."""

    at: Tensor
    value: float
    gradient: Tensor
    preconditioned: Tensor
    """The gradient, by the curvature that is known."""


@dataclass(frozen=True)
class _Step:
    """From one point to the next."""

    change: Tensor
    of_gradient: Tensor
    of_preconditioned: Tensor

    @staticmethod
    def between(here: _Point, there: _Point) -> _Step:
        return _Step(there.at - here.at, there.gradient - here.gradient, there.preconditioned - here.preconditioned)

    @property
    def curvature(self) -> Tensor:
        return self.change @ self.of_gradient


def _downhill(here: _Point, steps: list[_Step]) -> Tensor:
    """-H gradient, by the two loops of Nocedal (1980), in which the gradient is preconditioned all along."""
    rest, found, shares = here.gradient, here.preconditioned, []
    for step in reversed(steps):
        shares.append((step.change @ rest) / step.curvature)
        rest, found = rest - shares[-1] * step.of_gradient, found - shares[-1] * step.of_preconditioned
    if steps:  # by which the known curvature is too large or too small along the last step
        found = found * (steps[-1].curvature / (steps[-1].of_gradient @ steps[-1].of_preconditioned))
    for step, share in zip(steps, reversed(shares), strict=True):
        found = found + (share - (step.of_gradient @ found) / step.curvature) * step.change
    return -found


def minimised(
    function: Callable[[Tensor], Value],
    start: Tensor,
    precondition: Callable[[Tensor], Tensor],
    iterations: int,
    *,
    fewest: int = 0,
    enough: float = -math.inf,
    highest: float = math.inf,
) -> Tensor:
    """Where a function is smaller than at the start, after so many iterations, or where it is small enough before.

    Args:
        function: Gives value and gradient.
        start: A vector.
        precondition: The inverse of the curvature, as far as that is known; symmetric and positive definite.
        iterations: Each asks for the function once, or more often where a step is too long.
        fewest: So many are made in any case,
        enough: and no more once the function has come down to this.
        highest: The start is halved while the function is above this there.

    >>> import torch
    >>> bends = torch.tensor([1.0, 4.0])
    >>> parabola = lambda x: (float(x @ (bends * x)), 2 * bends * x)
    >>> minimised(parabola, torch.ones(2), lambda g: g / (2 * bends), 1).tolist()
    [0.0, 0.0]
    """
    steps: list[_Step] = []
    value, gradient = function(start)
    for _ in range(MOST_TRIES):
        if value <= highest:
            break
        start = start / 2
        value, gradient = function(start)
    here = _Point(start, value, gradient, precondition(gradient))
    for number in range(iterations):
        if number >= fewest and here.value <= enough:
            break
        there = _taken(function, here, _downhill(here, steps))
        if there is None:
            break
        following = _Point(*there, precondition(there[2]))
        step, here = _Step.between(here, following), following
        if step.curvature > 0:  # a function that bends downwards along a step tells no curvature
            steps.append(step)
    return here.at


def _taken(function: Callable[[Tensor], Value], here: _Point, direction: Tensor) -> tuple[Tensor, float, Tensor] | None:
    """Where a step along the direction gains enough, with value and gradient; None where none does."""
    share, slope = 1.0, float(here.gradient @ direction)
    if not slope < 0:
        return None
    for _ in range(MOST_TRIES):
        there = here.at + share * direction
        value, gradient = function(there)
        gained = value - here.value
        if gained <= ENOUGH * share * slope:
            return there, value, gradient
        least = -slope * share / (2 * (gained - slope * share)) if math.isfinite(gained) else 0.0  # of a parabola
        share *= min(LONGEST, max(SHORTEST, least))
    return None
