"""An objective to be minimised, and what is known of it at a point: value, slope, curvature, how far the minimum is.

Everything is on the scale of a sum over rows: Σ sᵢ φ(x̃ᵢ·w, tᵢ) + ½ Σ ρⱼ wⱼ². Where scikit-learn minimises a mean, ρ is
multiplied by the number of rows instead; the minimum is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from excise.estimators.kept import Floats, Rows

UNIT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Step:
    """An approximate Newton step at a point."""

    direction: Floats
    """d, near H⁻¹g: the minimum is about w - d."""
    residual: float
    """‖Hd - g‖ for the exact H and g, so that rounding is in it."""
    least: float
    """The smallest eigenvalue of H is at least this; 0 where nothing is known."""

    @property
    def length(self) -> float:
        """‖d‖."""
        return float(np.linalg.norm(self.direction))

    @property
    def miss(self) -> float:
        """‖d - H⁻¹g‖ is at most this."""
        return self.residual / self.least if self.least > 0 else np.inf


class Point(Protocol):
    """An objective at some weights."""

    @property
    def weights(self) -> Floats:
        """Where it is, as one vector."""
        ...

    @property
    def value(self) -> float:
        """The objective."""
        ...

    @property
    def gradient(self) -> Floats:
        """Its slope."""
        ...

    @property
    def rounding(self) -> float:
        """How far the computed gradient can be from the exact one."""
        ...

    @property
    def stiffness(self) -> float:
        """The trace of the Hessian or more: what rounding of a product with it is measured by."""
        ...

    @property
    def penalties(self) -> Floats:
        """ρ of each parameter: what the Hessian exceeds everywhere by its diagonal."""
        ...

    def hessian(self) -> Floats:
        """The second derivatives as a matrix."""
        ...

    def rough_hessian(self) -> Floats:
        """The same but for terms that hardly matter, where that is cheaper; to be a preconditioner."""
        ...

    def diagonal(self) -> Floats:
        """The diagonal of the Hessian."""
        ...

    def product(self, direction: Floats) -> Floats:
        """The Hessian times a direction."""
        ...

    def exceeds(self, other: Self) -> float:
        """A share of the Hessian at another point, of the rows left here, that the Hessian here exceeds for sure."""
        ...

    def parts(self, rows: Rows) -> Floats:
        """Columns whose outer products sum to what these rows add to the Hessian."""
        ...

    @property
    def left(self) -> NDArray[np.bool_]:
        """Which rows have any weight."""
        ...

    def distance(self, step: Step) -> float:
        """A bound on the distance to the minimum; infinite where nothing can be told yet."""
        ...


class Objective(Protocol):
    """A convex function of a vector."""

    @property
    def size(self) -> int:
        """The number of parameters."""
        ...

    @property
    def total(self) -> float:
        """The sum of the weights of rows."""
        ...

    @property
    def origin(self) -> Floats:
        """Where a fit begins."""
        ...

    @property
    def pull(self) -> float:
        """The sum of the lengths of all rows' gradients there."""
        ...

    def at(self, weights: Floats) -> Point:
        """What is known of it there."""
        ...
