"""Solves of (C + damping I) x = b with a curvature C that is known by its products: one object for each way.

An indefinite matrix gets more on its diagonal until it is positive definite, by each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from excise._support.checks import positive, require, whole
from excise._support.names import named
from excise.curvature.operators import Operator
from excise.curvature.woodbury import woodbury_of_multiple
from excise.errors import InputError

SMALL_BLOCK = 64  # up to here a dense matrix takes hardly more products than an iterative solve
Precondition = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solution:
    """A solve of (C + damping I) x = b, and how it went."""

    x: Tensor
    residual: float
    """‖(C + damping I) x - b‖ / ‖b‖."""
    iterations: int
    damping: float
    """What was added to the diagonal in the end: more than asked for where the matrix was indefinite."""
    method: str


class Solver(Protocol):
    """A way to solve."""

    def solve(self, operator: Operator, b: Tensor, *, damping: float) -> Solution:
        """The x with (C + damping I) x = b."""


@dataclass(frozen=True)
class CG:
    """Conjugate gradients, truncated after some iterations."""

    iterations: int = 8
    tolerance: float = 1e-6
    """Residual, relative to b, at which they stop."""

    def __post_init__(self) -> None:
        whole(self.iterations, "iterations")
        positive(self.tolerance, "tolerance")

    def solve(
        self, operator: Operator, b: Tensor, *, damping: float, precondition: Precondition | None = None
    ) -> Solution:
        """The x, near enough; ``precondition`` multiplies with an approximate inverse, which saves iterations."""
        _require_damping(damping)
        x, rest, count, damping = _conjugate_gradients(self, operator, b, damping, precondition or _unchanged)
        return Solution(x, float(rest.norm() / b.norm().clamp_min(1e-300)), count, damping, "cg")


@dataclass(frozen=True)
class Cholesky:
    """By the matrix itself: exact, for blocks that are small."""

    def solve(self, operator: Operator, b: Tensor, *, damping: float) -> Solution:
        """The x."""
        _require_damping(damping)
        x, damping = _by_cholesky(operator, b, damping)
        return _checked(operator, x, b, damping, "cholesky")


@dataclass(frozen=True)
class Automatic:
    """``Cholesky`` for a small block, ``CG`` for others."""

    iterations: int = 8

    def __post_init__(self) -> None:
        whole(self.iterations, "iterations")

    def solve(self, operator: Operator, b: Tensor, *, damping: float) -> Solution:
        """The x, by the one that suits the block."""
        solver: Solver = Cholesky() if operator.size <= SMALL_BLOCK else CG(self.iterations)
        return solver.solve(operator, b, damping=damping)


@dataclass(frozen=True, eq=False)
class SampleSpace:
    """By rows V with VᵀV = C (see ``ggn_rows``): quick where these are few."""

    rows: Tensor

    def solve(self, operator: Operator, b: Tensor, *, damping: float) -> Solution:
        """The x."""
        if not damping > 0:
            raise InputError("a solve in sample space needs damping > 0, that is weight decay.")
        return _checked(operator, woodbury_of_multiple(b, self.rows, damping), b, damping, "sample-space")


SOLVERS: dict[str, Callable[[], Solver]] = {"auto": Automatic, "cg": CG, "cholesky": Cholesky}


def solver_named(solver: Solver | str) -> Solver:
    """A solver, given as such or by its name."""
    return named(solver, SOLVERS, "solver")


def _require_damping(damping: float) -> None:
    require(damping >= 0, "damping", damping, "a non-negative number")


def _checked(operator: Operator, x: Tensor, b: Tensor, damping: float, method: str) -> Solution:
    residual = operator.product(x) + damping * x - b
    return Solution(x, float(residual.norm() / b.norm().clamp_min(1e-300)), 1, damping, method)


def _by_cholesky(operator: Operator, b: Tensor, damping: float) -> tuple[Tensor, float]:
    matrix = operator.dense(b)
    matrix = (matrix + matrix.T) / 2
    least = max(damping, 1e-6 * float(matrix.diagonal().abs().mean()))
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix + damping * torch.eye(len(b)).to(b))
        if not failed:
            return torch.cholesky_solve(b[:, None], factor)[:, 0], damping
        damping = max(2 * damping, least)  # the usual diagonal modification of an indefinite Hessian


def _unchanged(vector: Tensor) -> Tensor:
    return vector


def _conjugate_gradients(
    how: CG, operator: Operator, b: Tensor, damping: float, precondition: Precondition
) -> tuple[Tensor, Tensor, int, float]:
    """Where a direction of negative curvature turns up, begin again with more on the diagonal."""
    goal = how.tolerance**2 * (b @ b)
    while True:
        x, rest = torch.zeros_like(b), b.clone()
        direction = precondition(rest)
        size = rest @ direction
        for iteration in range(how.iterations):
            if rest @ rest <= goal:
                return x, rest, iteration, damping
            bent = operator.product(direction) + damping * direction
            along = direction @ bent
            if along <= 0:
                damping = max(2 * damping, float(-2 * along / (direction @ direction)), 1e-8)
                break
            x = x + (size / along) * direction
            rest = rest - (size / along) * bent
            better = precondition(rest)
            size, previous = rest @ better, size
            direction = better + (size / previous) * direction
        else:
            return x, rest, how.iterations, damping
