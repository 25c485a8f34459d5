"""The objective of multinomial logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from excise._support.newton_bound import distance_to_minimum
from excise.estimators.kept import Floats, Rows
from excise.estimators.newton.design import Design
from excise.estimators.newton.objective import UNIT, Step
from excise.estimators.newton.over_rows import OverRows

TINY = 1e-200  # a probability that no row has but by underflow
NEGLIGIBLE = 0.01
"""The share of each pair's curvature that a preconditioner may leave out, so as to skip most rows."""


@dataclass(frozen=True)
class SoftmaxObjective(OverRows):
    """Σ sᵢ (log Σ_c exp(x̃ᵢ·w_c) - x̃ᵢ·w_tᵢ) + ½ Σ ρⱼ wⱼ² + ½ μ ‖Σ_c w_c‖².

    The same vector added to all classes changes no probability. The last term, with μ the mean weight of a class's
    rows, picks the solution in which the classes sum to 0, as do all solvers that begin there; at it, it is 0.

    |D³[v, v, u]| = |E (v - Ev)² (u - Eu)| is at most (max u - min u) D²[v, v], and max u - min u ≤ √2 ‖x̃‖ ‖U‖.
    """

    design: Design
    targets: Floats
    """A column of 0 and 1 for each class."""
    shares: Floats
    ridge: Floats
    """ρ: the penalty of each column of X̃, the same for all classes."""

    @property
    def classes(self) -> int:
        """How many."""
        return int(self.targets.shape[1])

    @property
    def size(self) -> int:
        """Columns times classes."""
        return self.design.width * self.classes

    @property
    def gauge(self) -> float:
        """μ."""
        return float(self.total / self.classes)

    @cached_property
    def pull(self) -> float:
        """Of all rows there."""
        return float(np.linalg.norm(self.at(self.origin).slopes, axis=1) @ self.design.lengths)

    def at(self, weights: Floats) -> SoftmaxPoint:
        """Value and slope there."""
        return SoftmaxPoint(self, weights, self.design.forward(weights.reshape(self.design.width, -1)))

    def penalise(self, table: Floats) -> Floats:
        """What penalties add to the gradient, for weights or a direction as columns × classes."""
        found: Floats = self.ridge[:, None] * table + self.gauge * table.sum(axis=1, keepdims=True)
        return found


@dataclass(frozen=True)
class SoftmaxPoint:
    """The objective at some weights."""

    objective: SoftmaxObjective
    weights: Floats
    outputs: Floats

    @property
    def table(self) -> Floats:
        """The weights as columns × classes."""
        return self.weights.reshape(self.objective.design.width, -1)

    @cached_property
    def chances(self) -> Floats:
        """The probability of each class in each row."""
        away: Floats = np.exp(self.outputs - self.outputs.max(axis=1, keepdims=True))
        away /= away.sum(axis=1, keepdims=True)
        return away

    @cached_property
    def value(self) -> float:
        """The objective."""
        one = self.objective
        losses = logsumexp(self.outputs, axis=1) - np.einsum("ik,ik->i", self.outputs, one.targets)
        penalties = np.sum(self.table * one.penalise(self.table)) / 2
        return float(one.shares @ losses + penalties)

    @cached_property
    def slopes(self) -> Floats:
        """Of each row's loss by each output, weighted."""
        return (self.chances - self.objective.targets) * self.objective.shares[:, None]

    @cached_property
    def gradient(self) -> Floats:
        """Its slope."""
        one = self.objective
        return (one.design.backward(self.slopes) + one.penalise(self.table)).ravel()

    @cached_property
    def spread(self) -> Floats:
        """The trace of each row's curvature, weighted."""
        found: Floats = self.objective.shares * (1 - np.square(self.chances).sum(axis=1)).clip(0)
        return found

    @cached_property
    def rounding(self) -> float:
        """Of the sum over rows, and of each row's outputs, whose errors are independent of one another."""
        one = self.objective
        long = one.design.lengths
        summed = np.linalg.norm(self.slopes, axis=1) @ long + np.linalg.norm(one.penalise(np.abs(self.table)))
        reading = np.linalg.norm(self.spread * long**2) * np.linalg.norm(self.weights)
        return float(UNIT * (4 * summed + 8 * reading))

    @cached_property
    def stiffness(self) -> float:
        """The trace."""
        one = self.objective
        rest = one.classes * one.ridge.sum() + one.gauge * one.size
        return float(self.spread @ one.design.lengths**2 + rest)

    @property
    def penalties(self) -> Floats:
        """ρ of each parameter."""
        return np.repeat(self.objective.ridge, self.objective.classes)

    def hessian(self) -> Floats:
        """diag(p) - ppᵀ is a sum over pairs of classes, of p_a p_b (e_a - e_b)(e_a - e_b)ᵀ."""
        return self._by_pairs(0.0)

    def rough_hessian(self) -> Floats:
        """The same, from the rows that matter to each pair."""
        return self._by_pairs(NEGLIGIBLE)

    def _by_pairs(self, negligible: float) -> Floats:
        one = self.objective
        wide, many = one.design.width, one.classes
        total = np.zeros((wide, many, wide, many))
        for a, b in combinations(range(many), 2):
            both = self.objective.shares * self.chances[:, a] * self.chances[:, b]
            part = one.design.gram(_largest(both, 1 - negligible) if negligible else both)
            total[:, a, :, a] += part
            total[:, b, :, b] += part
            total[:, a, :, b] -= part
            total[:, b, :, a] -= part
        each = np.arange(wide)
        total[each, :, each, :] += one.gauge
        for c in range(many):
            total[each, c, each, c] += one.ridge
        return total.reshape(one.size, one.size)

    def diagonal(self) -> Floats:
        """Of the same."""
        one = self.objective
        each = one.shares[:, None] * self.chances * (1 - self.chances)
        return (one.design.squares(each) + one.ridge[:, None] + one.gauge).ravel()

    def product(self, direction: Floats) -> Floats:
        """By a pass forward and one back."""
        one = self.objective
        table = direction.reshape(one.design.width, -1)
        moves = one.design.forward(table)
        moves *= self.chances
        moves -= self.chances * moves.sum(axis=1, keepdims=True)
        moves *= one.shares[:, None]
        return (one.design.backward(moves) + one.penalise(table)).ravel()

    @property
    def left(self) -> NDArray[np.bool_]:
        """Rows with a weight."""
        return self.objective.shares > 0

    def exceeds(self, other: SoftmaxPoint) -> float:
        """The smallest ratio of p_a p_b in any row and pair, or of penalties."""
        one, two = self.objective, other.objective
        there = self.left & other.left
        chances = (self.chances[there] / np.maximum(other.chances[there], TINY)).min(axis=1) ** 2
        rows = np.min(chances * one.shares[there] / two.shares[there], initial=1.0)
        held = two.ridge > 0
        return float(min(rows, np.min(one.ridge[held] / two.ridge[held], initial=1.0), one.gauge / two.gauge))

    def parts(self, rows: Rows) -> Floats:
        """A root of diag(p) - ppᵀ, which is diag(√p)(1 - √p√pᵀ), times each row."""
        root = np.sqrt(self.chances[rows])
        bends = root[:, :, None] * (np.eye(self.objective.classes) - root[:, :, None] * root[:, None, :])
        bends *= np.sqrt(self.objective.shares[rows])[:, None, None]
        found: Floats = np.einsum("ij,iab->jaib", self.objective.design.rows(rows), bends)
        return found.reshape(self.objective.size, -1)

    def distance(self, step: Step) -> float:
        """By the Newton step."""
        pull = float(np.linalg.norm(self.gradient)) + self.rounding
        told = distance_to_minimum(
            step=step.length,
            decrease=float(self.gradient @ step.direction),
            residual=step.residual,
            gradient=pull,
            least_curvature=step.least,
            bend=np.sqrt(2) * self.objective.longest,
        )
        return min(told, pull / self.objective.strength) if self.objective.strength > 0 else told


def _largest(weights: Floats, share: float) -> Floats:
    """The largest weights that make up this share of their sum; 0 for the others."""
    order = np.argsort(weights)[::-1]
    enough = int(np.searchsorted(np.cumsum(weights[order]), share * weights.sum())) + 1
    kept = np.zeros_like(weights)
    kept[order[:enough]] = weights[order[:enough]]
    return kept
