"""A logistic regression of several classes in closed form, with its exact Newton steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from excise.curvature.operators import Operator
from excise.curvature.solvers import CG

SOLVER = CG(iterations=2000, tolerance=1e-7)  # far below what the Newton steps' own error leaves


@dataclass(frozen=True)
class SoftmaxRegression:
    """The objective of a logistic regression in closed form; weights are classes × (inputs and bias)."""

    inputs: Tensor
    """Samples × inputs; the last is always 1, for the bias."""
    labels: Tensor
    weight_decay: float

    def slope(self, weights: Tensor, without: int) -> Tensor:
        """∇F(w; D∖z)."""
        errors = self._probabilities(weights) - nn.functional.one_hot(self.labels, len(weights))
        errors[without] = 0
        return errors.T @ self.inputs / (len(self.inputs) - 1) + self.weight_decay * weights

    def sample_slope(self, weights: Tensor, sample: int) -> Tensor:
        """∇ℓ(w, z)."""
        error = (weights @ self.inputs[sample]).softmax(0)
        error[self.labels[sample]] -= 1
        return error[:, None] * self.inputs[sample]

    def newton(self, weights: Tensor, without: int, classes: Sequence[int]) -> Tensor:
        """The weights after one exact Newton step on F(w; D∖z), of the slices of some classes alone."""
        block = torch.tensor(classes)
        goal = -self.slope(weights, without)[block]
        found = SOLVER.solve(
            self._curvature(weights, without, block),
            goal.flatten(),
            damping=self.weight_decay,
            precondition=self._kronecker_inverse(weights, block),
        ).x
        moved = weights.clone()
        moved[block] += found.reshape(goal.shape)
        return moved

    def _curvature(self, weights: Tensor, without: int, block: Tensor) -> Operator:
        """∇²F(w; D∖z) on the block, weight decay aside: the mean of (diag(p) - ppᵀ) ⊗ xxᵀ."""
        shares = self._probabilities(weights)[:, block]
        shares[without] = 0

        def product(vector: Tensor) -> Tensor:
            along = self.inputs @ vector.reshape(len(block), -1).T
            bent = shares * (along - (shares * along).sum(1, keepdim=True))
            return (bent.T @ self.inputs).flatten() / (len(self.inputs) - 1)

        return Operator(len(block) * self.inputs.shape[1], product)

    def _kronecker_inverse(self, weights: Tensor, block: Tensor) -> Callable[[Tensor], Tensor]:
        """(B ⊗ A + λI)⁻¹ with the means B of diag(p) - ppᵀ and A of xxᵀ: it only speeds the solve up."""
        shares = self._probabilities(weights)[:, block]
        between, turned = torch.linalg.eigh(torch.diag(shares.mean(0)) - shares.T @ shares / len(shares))
        values, vectors = self._input_spectrum
        scale = between[:, None] * values + self.weight_decay

        def divide(vector: Tensor) -> Tensor:
            matrix = turned.T @ vector.reshape(len(block), -1) @ vectors / scale
            result: Tensor = turned @ matrix @ vectors.T
            return result.flatten()

        return divide

    @cached_property
    def _input_spectrum(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.inputs.T @ self.inputs / len(self.inputs))
        return values, vectors

    def _probabilities(self, weights: Tensor) -> Tensor:
        return (self.inputs @ weights.T).softmax(1)
