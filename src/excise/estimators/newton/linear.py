"""The objective of a linear model with one output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from excise._support.newton_bound import distance_to_minimum
from excise.estimators.kept import Floats, Rows
from excise.estimators.newton.design import Design
from excise.estimators.newton.losses import Loss
from excise.estimators.newton.objective import UNIT, Step
from excise.estimators.newton.over_rows import OverRows

DENSE = 500  # up to so many parameters, matrices are no effort


@dataclass(frozen=True)
class LinearObjective(OverRows):
    """Σ sᵢ φ(x̃ᵢ·w, tᵢ) + ½ Σ ρⱼ wⱼ²."""

    design: Design
    targets: Floats
    shares: Floats
    """s: the weight of each row, 0 for one that is gone."""
    loss: Loss
    ridge: Floats
    """ρ: the penalty of each parameter."""

    @property
    def size(self) -> int:
        """Columns."""
        return self.design.width

    @cached_property
    def pull(self) -> float:
        """Of all rows there."""
        return float(np.abs(self.at(self.origin).slopes) @ self.design.lengths)

    def at(self, weights: Floats) -> LinearPoint:
        """Value and slope there."""
        return LinearPoint(self, weights, self.design.forward(weights))


@dataclass(frozen=True)
class LinearPoint:
    """The objective at some weights."""

    objective: LinearObjective
    weights: Floats
    outputs: Floats

    @cached_property
    def value(self) -> float:
        """The objective."""
        one = self.objective
        losses = one.loss.value(self.outputs, one.targets)
        return float(one.shares @ losses + one.ridge @ self.weights**2 / 2)

    @cached_property
    def slopes(self) -> Floats:
        """Of each row's loss, weighted."""
        one = self.objective
        return one.shares * one.loss.slope(self.outputs, one.targets)

    @cached_property
    def curvatures(self) -> Floats:
        """Of each row's loss, weighted."""
        one = self.objective
        return one.shares * one.loss.curvature(self.outputs, one.targets)

    @cached_property
    def gradient(self) -> Floats:
        """Its slope."""
        one = self.objective
        return one.design.backward(self.slopes) + one.ridge * self.weights

    @cached_property
    def rounding(self) -> float:
        """Of the sum over rows, and of each row's output, whose errors are independent of one another."""
        one = self.objective
        long = one.design.lengths
        summed = np.abs(self.slopes) @ long + np.linalg.norm(one.ridge * self.weights)
        reading = np.linalg.norm(self.curvatures * long**2) * np.linalg.norm(self.weights)
        targets = np.linalg.norm(self.curvatures * long * np.abs(one.targets))
        return float(UNIT * (4 * summed + 8 * (reading + targets)))

    @cached_property
    def stiffness(self) -> float:
        """The trace."""
        one = self.objective
        return float(self.curvatures @ one.design.lengths**2 + one.ridge.sum())

    @property
    def penalties(self) -> Floats:
        """ρ of each parameter."""
        return self.objective.ridge

    def hessian(self) -> Floats:
        """X̃ᵀ diag(s φ'') X̃ + diag(ρ)."""
        return self.objective.design.gram(self.curvatures) + np.diag(self.objective.ridge)

    rough_hessian = hessian

    def diagonal(self) -> Floats:
        """Of the same."""
        return self.objective.design.squares(self.curvatures) + self.objective.ridge

    def product(self, direction: Floats) -> Floats:
        """By a pass forward and one back."""
        one = self.objective
        return one.design.backward(self.curvatures * one.design.forward(direction)) + one.ridge * direction

    @property
    def left(self) -> NDArray[np.bool_]:
        """Rows with a weight."""
        return self.objective.shares > 0

    def exceeds(self, other: LinearPoint) -> float:
        """The smallest ratio of curvatures of any row, or of penalties."""
        ridge, before = self.objective.ridge, other.objective.ridge
        there = self.left & (other.curvatures > 0)
        rows = np.min(self.curvatures[there] / other.curvatures[there], initial=1.0)
        return float(min(rows, np.min(ridge[before > 0] / before[before > 0], initial=1.0)))

    def parts(self, rows: Rows) -> Floats:
        """√c x̃ of each row."""
        found: Floats = self.objective.design.rows(rows).T * np.sqrt(self.curvatures[rows])
        return found

    def distance(self, step: Step) -> float:
        """By the Newton step; where a row would pass a kink on the way, by the least curvature on either side of it."""
        one = self.objective
        pull = float(np.linalg.norm(self.gradient)) + self.rounding
        strong = pull / one.strength if one.strength > 0 else np.inf
        if not one.loss.kinks:
            told = distance_to_minimum(
                step=step.length,
                decrease=float(self.gradient @ step.direction),
                residual=step.residual,
                gradient=pull,
                least_curvature=step.least,
                bend=one.loss.bend * one.longest,
            )
        elif self._stays_between_kinks(step):
            told = step.length + step.miss  # quadratic from here to there
        else:
            told = self._across(pull, step.least)
        return min(told, strong)

    def _stays_between_kinks(self, step: Step) -> bool:
        if not np.isfinite(step.miss):
            return False
        one = self.objective
        left = one.shares > 0
        moves = np.abs(one.design.forward(step.direction)) + one.design.lengths * (
            step.miss + 8 * UNIT * np.linalg.norm(self.weights)
        )
        return bool(np.all(moves[left] < one.loss.room(self.outputs, one.targets)[left]))

    def _across(self, pull: float, least: float) -> float:
        """‖g‖ / λ, with λ the smallest eigenvalue once all rows are left out that could pass a kink within this reach.

        On the ball of that radius the Hessian is nowhere smaller than that, so the minimum lies within.
        """
        one = self.objective
        if one.size > DENSE or not least > 0:
            return np.inf
        room = one.loss.room(self.outputs, one.targets)
        reach = 2 * pull / least
        for _ in range(4):
            stay = room > one.design.lengths * (reach + 8 * UNIT * np.linalg.norm(self.weights))
            sure = one.design.gram(self.curvatures * stay) + np.diag(one.ridge)
            least = float(eigvalsh(sure, subset_by_index=(0, 0))[0]) - one.size * UNIT * self.stiffness
            if not least > 0:
                return np.inf
            if pull / least <= reach:
                return pull / least
            reach = 2 * pull / least
        return np.inf
