"""``HuberRegressor``: coefficients and the scale of residuals, found together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import HuberRegressor

from excise.estimators.kept import Data, Floats, Kept, Options, Rows, way_for
from excise.estimators.newton.design import Design
from excise.estimators.newton.keeping import keep_minimum
from excise.estimators.newton.kinds import Problem, left_of
from excise.estimators.newton.objective import UNIT, Step
from excise.estimators.newton.reading import read_design, read_numbers, read_weights
from excise.estimators.newton.stopping import Stopping


@dataclass(frozen=True)
class HuberObjective:
    """Σ sᵢ (σ + h(rᵢ / σ) σ) + α ‖coef‖², r = y - x̃·w, with h(a) = a² up to |a| = ε and 2ε |a| - ε² past it."""

    design: Design
    targets: Floats
    shares: Floats
    epsilon: float
    ridge: Floats
    """2α for coefficients, 0 for the intercept and for σ, which comes last."""

    @property
    def size(self) -> int:
        """Columns, and σ."""
        return self.design.width + 1

    @cached_property
    def total(self) -> float:
        """Of the rows that are left."""
        return float(self.shares.sum())

    @property
    def origin(self) -> Floats:
        """Weights of 0, and a scale of 1."""
        return np.append(np.zeros(self.size - 1), 1.0)

    @cached_property
    def pull(self) -> float:
        """Of all rows there."""
        return float(np.abs(self.at(self.origin).slopes) @ self.design.lengths)

    @cached_property
    def reaches(self) -> Floats:
        """The length of (x̃, ε): by how much |r| - εσ of a row changes at most, for a step of length 1."""
        found: Floats = np.sqrt(self.design.lengths**2 + self.epsilon**2)
        return found

    def at(self, weights: Floats) -> HuberPoint:
        """Value and slope there."""
        return HuberPoint(self, weights, self.targets - self.design.forward(weights[:-1]))


@dataclass(frozen=True)
class HuberPoint:
    """The objective at some weights and scale."""

    objective: HuberObjective
    weights: Floats
    residuals: Floats

    @property
    def scale(self) -> float:
        """σ."""
        return float(self.weights[-1])

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Rows that are no outliers."""
        return np.abs(self.residuals) <= self.objective.epsilon * self.scale

    @cached_property
    def value(self) -> float:
        """The objective; infinite where σ is not positive."""
        if not self.scale > 0:
            return np.inf
        one, away = self.objective, np.abs(self.residuals)
        outer = 2 * one.epsilon * away - self.scale * one.epsilon**2
        losses = self.scale + np.where(self.inside, away**2 / self.scale, outer)
        return float(one.shares @ losses + one.ridge @ self.weights**2 / 2)

    @cached_property
    def slopes(self) -> Floats:
        """Of each row's loss by its output, weighted: -2 r / σ, cut at ±2ε."""
        cut = self.objective.epsilon
        return -2 * self.objective.shares * np.clip(self.residuals / self.scale, -cut, cut)

    @cached_property
    def gradient(self) -> Floats:
        """Its slope."""
        one = self.objective
        cut = np.minimum(np.abs(self.residuals) / self.scale, one.epsilon)
        by_scale = one.shares @ (1 - cut**2)
        return np.append(one.design.backward(self.slopes), by_scale) + one.ridge * self.weights

    @cached_property
    def curvatures(self) -> Floats:
        """2s / σ of rows that are no outliers: the Hessian is the sum of these times (x̃, r/σ)(x̃, r/σ)ᵀ."""
        return 2 * self.objective.shares * self.inside / self.scale

    @cached_property
    def rounding(self) -> float:
        """Of the sum over rows, and of each row's residual."""
        one = self.objective
        summed = np.abs(self.slopes) @ one.reaches + one.total + np.linalg.norm(one.ridge * self.weights)
        size = np.linalg.norm(self.weights) * one.design.lengths + np.abs(one.targets)
        return float(UNIT * (4 * summed + 8 * np.linalg.norm(self.curvatures * one.reaches * size)))

    @cached_property
    def stiffness(self) -> float:
        """The trace, or more."""
        return float(self.curvatures @ self.objective.reaches**2 + self.objective.ridge.sum())

    @property
    def penalties(self) -> Floats:
        """ρ of each parameter."""
        return self.objective.ridge

    def hessian(self) -> Floats:
        """Σ c (x̃, a)(x̃, a)ᵀ + diag(ρ), a = r / σ."""
        one = self.objective
        scaled = self.curvatures * self.residuals / self.scale
        matrix = np.zeros((one.size, one.size))
        matrix[:-1, :-1] = one.design.gram(self.curvatures)
        matrix[-1, :-1] = matrix[:-1, -1] = one.design.backward(scaled)
        matrix[-1, -1] = scaled @ self.residuals / self.scale
        return matrix + np.diag(one.ridge)

    rough_hessian = hessian

    def diagonal(self) -> Floats:
        """Of the same."""
        corner = self.curvatures @ (self.residuals / self.scale) ** 2
        return np.append(self.objective.design.squares(self.curvatures), corner) + self.objective.ridge

    def product(self, direction: Floats) -> Floats:
        """By a pass forward and one back."""
        one = self.objective
        ratio = self.residuals / self.scale
        moves = self.curvatures * (one.design.forward(direction[:-1]) + ratio * direction[-1])
        return np.append(one.design.backward(moves), moves @ ratio) + one.ridge * direction

    @property
    def left(self) -> NDArray[np.bool_]:
        """Rows with a weight."""
        return self.objective.shares > 0

    def exceeds(self, other: HuberPoint) -> float:
        """All of it at the same weights; elsewhere (x̃, r/σ) are others."""
        return 1.0 if self.objective is other.objective and np.array_equal(self.weights, other.weights) else 0.0

    def parts(self, rows: Rows) -> Floats:
        """√c (x̃, r/σ) of each row."""
        wide = np.column_stack([self.objective.design.rows(rows), self.residuals[rows] / self.scale])
        found: Floats = wide.T * np.sqrt(self.curvatures[rows])
        return found

    def distance(self, step: Step) -> float:
        """By Newton's map, if it contracts on a ball around here (Newton and Kantorovich).

        With n = ‖H⁻¹g‖ and the Hessian changing on the ball of radius 2n by at most λ/2, there is one minimum in the
        ball, at most n / (1 - q) away, q being that change over λ. A row that stays inside changes it by at most
        6 ‖(x̃, ε)‖² / σ² times the distance, by its third derivatives; one that may become an outlier, or cease to be
        one, by all of 2 ‖(x̃, ε)‖² / σ.
        """
        one = self.objective
        newton = step.length + step.miss
        scale = self.scale - 2 * newton
        if not scale > 0:
            return np.inf
        room = np.abs(np.abs(self.residuals) - one.epsilon * self.scale)
        slack = 8 * UNIT * (np.linalg.norm(self.weights) * one.design.lengths + np.abs(one.targets))
        crossing = one.reaches * 2 * newton + slack >= room
        squares = one.shares * one.reaches**2
        bends = 6 * float(squares @ (self.inside | crossing)) / scale**2 * 2 * newton
        jumps = 2 * float(squares @ crossing) / scale
        share = (bends + jumps) / step.least if step.least > 0 else np.inf
        return newton / (1 - share) if share <= 0.5 else np.inf


@dataclass(frozen=True)
class RobustRegression:
    """One output with a scale."""

    design: Design
    targets: Floats
    weights: Floats
    epsilon: float
    alpha: float

    def problem(self, gone: Rows) -> Problem:
        """One objective."""
        left = left_of(len(self.targets), gone)
        ridge = np.zeros(self.design.width + 1)
        ridge[: self.design.X.shape[1]] = 2 * self.alpha
        return Problem([HuberObjective(self.design, self.targets, self.weights * left, self.epsilon, ridge)], left)

    def read(self, estimator: Any, problem: Problem) -> list[Floats]:  # noqa: ARG002
        """Coefficients, the intercept, the scale."""
        intercept = [estimator.intercept_] if self.design.intercept else []
        return [np.concatenate([estimator.coef_, intercept, [estimator.scale_]]).astype(np.float64)]

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:
        """And which of the rows that are left are outliers."""
        weights = found[0]
        estimator.coef_ = weights[: self.design.X.shape[1]].copy()
        estimator.intercept_ = weights[-2] if self.design.intercept else 0.0
        estimator.scale_ = weights[-1]
        away = np.abs(self.targets - self.design.forward(weights[:-1]))
        estimator.outliers_ = (away > weights[-1] * self.epsilon)[problem.left]


@way_for(HuberRegressor)
def keep_huber(estimator: Any, data: Data, options: Options) -> Kept:
    """Jointly convex in coefficients, intercept and scale; the distance is that of all of these."""
    design = read_design(estimator, data, options)
    kind = RobustRegression(
        design=design,
        targets=read_numbers(data),
        weights=read_weights(data),
        epsilon=float(estimator.epsilon),
        alpha=float(estimator.alpha),
    )
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, "sum"))
