"""Newton steps: by a Cholesky factor where that is no effort, else by conjugate gradients with one that was kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigvalsh
from scipy.sparse.linalg import LinearOperator, eigsh

from excise.errors import NotYetSupportedError
from excise.estimators.kept import Floats
from excise.estimators.newton.linear import DENSE
from excise.estimators.newton.objective import UNIT, Point, Step

SINGLE = 4000  # from so many parameters on, a preconditioner is in single precision
LARGEST = 12_000  # parameters whose preconditioner is a full matrix
CLOSE = 0.1  # of a step's length may be missed: the bound is as much too large
MOST_PRODUCTS = 400
SAFE = 0.4  # of the smallest eigenvalue at an anchor: Lanczos may be off by a fifth, and elsewhere it is half of that
HALF = 0.5
MOST_GONE = 50  # rows whose leverage is computed; for more, a factor is made anew
MOST_FREE = 100  # parameters without a penalty, where the others are too many for a matrix


class Steps(Protocol):
    """A way to solve for Newton steps."""

    def sure(self, point: Point) -> bool:
        """Whether the smallest eigenvalue that steps at this point say is one below that of the Hessian there."""
        ...

    def renewed(self, point: Point) -> Steps:
        """Steps that are sure at this point."""
        ...

    def step(self, point: Point) -> Step:
        """The step at a point."""
        ...


def steps_for(point: Point) -> Steps:
    """The way for an objective of this size, with what is worth keeping made at this point."""
    size = len(point.weights)
    if size <= DENSE:
        return DirectSteps()
    if size <= LARGEST:
        return _factored(point)
    return _diagonal(point)


@dataclass(frozen=True)
class DirectSteps:
    """By a factor of the matrix at each point."""

    def sure(self, point: Point) -> bool:  # noqa: ARG002
        """It is computed at each point."""
        return True

    def renewed(self, point: Point) -> Steps:  # noqa: ARG002
        """They always are."""
        return self

    def step(self, point: Point) -> Step:
        """Solved, and the solution put into the equation again."""
        matrix, size = point.hessian(), len(point.weights)
        slack = size * UNIT * point.stiffness
        least = float(eigvalsh(matrix, subset_by_index=(0, 0))[0]) - slack
        sturdy = matrix if least > 0 else matrix + (slack - least + 1e-8 * point.stiffness / size) * np.eye(size)
        direction = cho_solve(cho_factor(sturdy), point.gradient)
        direction += cho_solve(cho_factor(sturdy), point.gradient - sturdy @ direction)
        left = point.gradient - matrix @ direction
        return Step(direction, _residual(point, left, float(np.linalg.norm(direction))), max(least, 0.0))


@dataclass(frozen=True)
class ConjugateSteps:
    """By conjugate gradients."""

    anchor: Point
    """Where the preconditioner was made."""
    precondition: Callable[[Floats], Floats]
    """What is near H⁻¹ there, and exceeds it unless it is rough; times a vector, or several columns."""
    least: float
    """A part (SAFE) of the smallest eigenvalue of the Hessian there, or less."""
    rough: bool = False

    def sure(self, point: Point) -> bool:
        """Whether the Hessian is at least half of that at the anchor.

        Without rows that add G to it, H - G ≥ (1 - tr(H⁻¹G)) H; the curvature of the other rows has a known share.
        """
        if point is self.anchor:
            return True
        share = point.exceeds(self.anchor)
        gone = np.flatnonzero(self.anchor.left & ~point.left)
        if share < HALF or len(gone) > MOST_GONE:
            return False
        parts = self.anchor.parts(gone)
        if self.rough:
            return not parts.any()
        return share * (1 - float(np.sum(parts * self.precondition(parts)))) >= HALF

    def renewed(self, point: Point) -> Steps:
        """With what the penalty says of the smallest eigenvalue, if all but a few parameters have one."""
        if np.count_nonzero(point.penalties == 0) > MOST_FREE:
            return steps_for(point)
        return replace(self, anchor=point, least=SAFE * least_by_penalty(point), rough=True)

    def step(self, point: Point) -> Step:
        """Until what is missed is a small part of the step, for sure, or rounding prevails."""
        left = point.gradient
        direction, image, along = (np.zeros_like(left) for _ in range(3))
        before, travelled = 1.0, 0.0
        residual = _residual(point, left, 0.0)
        for _ in range(MOST_PRODUCTS):
            ready = self.precondition(left)
            now = float(left @ ready)
            along = ready + (now / before) * along
            before = now
            bent = point.product(along)
            if not (stretch := float(along @ bent)) > 0:
                break
            pace = now / stretch
            direction = direction + pace * along
            image = image + pace * bent
            travelled += abs(pace) * float(np.linalg.norm(along))
            left = point.gradient - image
            residual = _residual(point, left, travelled)
            rounding = residual - float(np.linalg.norm(left))
            if residual <= max(CLOSE * self.least * float(np.linalg.norm(direction)), 2 * rounding):
                break
        return Step(direction, residual, self.least)


def _residual(point: Point, left: Floats, travelled: float) -> float:
    """‖g - Hd‖ with rounding: of g, and of products with H of vectors that are so long in all."""
    return float(np.linalg.norm(left)) + point.rounding + 4 * UNIT * point.stiffness * travelled


def _factored(point: Point) -> ConjugateSteps:
    """With a factor of the Hessian here."""
    matrix = point.rough_hessian()
    if len(matrix) > SINGLE:
        matrix = matrix.astype(np.float32)
    lift = UNIT * float(np.trace(matrix))
    while True:
        try:
            factor = cho_factor(matrix, lower=True)
            break
        except LinAlgError:
            matrix[np.diag_indices_from(matrix)] += lift
            lift *= 10

    def solve(vector: Floats) -> Floats:
        found: Floats = cho_solve(factor, vector.astype(matrix.dtype), check_finite=False).astype(np.float64)
        return found

    inverse = LinearOperator(matrix.shape, matvec=solve, dtype=np.float64)
    start = np.ones(len(matrix))
    largest = eigsh(inverse, k=1, which="LA", tol=0.1, v0=start, return_eigenvectors=False)[0]
    return ConjugateSteps(point, solve, float(SAFE / largest))


def _diagonal(point: Point) -> ConjugateSteps:
    """With the diagonal of the Hessian, for objectives that have too many parameters for a matrix."""
    diagonal = point.diagonal()
    return ConjugateSteps(point, lambda vector: vector / diagonal, SAFE * least_by_penalty(point), rough=True)


def least_by_penalty(point: Point) -> float:
    """A bound below the smallest eigenvalue of the Hessian, where all but a few parameters (intercepts) are penalised.

    With b the free parameters, v the others, S the block of H of the former and B that of both, the data's part of the
    quadratic form is at least (b + S⁻¹Bv)ᵀ S (b + S⁻¹Bv). With η the smallest eigenvalue of S and m = ‖S⁻¹B‖, H
    exceeds ρ ‖v‖² + η ‖b + S⁻¹Bv‖², and that the smaller eigenvalue of a 2 × 2 matrix: ρη / (ρ + η (1 + m²)) or more.
    """
    penalties = point.penalties
    free = np.flatnonzero(penalties == 0)
    if not len(free):
        return float(penalties.min())
    if len(free) > MOST_FREE:
        raise NotYetSupportedError(
            f"estimator: it has {len(penalties):,} parameters of which {len(free):,} are not penalised, so nothing "
            "bounds its curvature; fit it with a penalty (a finite C, or alpha above 0)."
        )
    held = np.setdiff1d(np.arange(len(penalties)), free)
    columns = np.array([point.product((np.arange(len(penalties)) == one).astype(np.float64)) for one in free])
    block, border = columns[:, free], columns[:, held]
    eta = float(eigvalsh(block)[0])
    if not eta > 0:
        return 0.0
    tilt = float(np.linalg.norm(np.linalg.solve(block, border), 2))
    rho = float(penalties[held].min())
    return rho * eta / (rho + eta * (1 + tilt**2))
