"""The curvature of one layer: Kronecker factors B ⊗ A, or a diagonal where these can't be seen (see ``kfac``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LayerCurvature(Protocol):
    """The curvature of one layer, without the exact rows."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(C_PP + damping I)⁻¹ of each of a stack of matrices, units × width, on some of the layer's units."""
        ...

    @property
    def trace(self) -> float:
        """Sum of its eigenvalues."""
        ...

    def to(self, device: torch.device) -> LayerCurvature:
        """The same on another device."""
        ...


@dataclass(frozen=True)
class KroneckerFactors:
    """B ⊗ A."""

    output_factor: Tensor
    """B, units × units; of an embedding its diagonal alone (how often each token occurs)."""
    input_eigenvalues: Tensor
    """The largest eigenvalues of A."""
    input_eigenvectors: Tensor
    """Their eigenvectors, one a column."""
    mean_of_rest: float
    """Mean of the other eigenvalues."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(B_PP ⊗ A + damping I)⁻¹ of each of a stack of matrices, units × width."""
        if self.output_factor.ndim == 1:
            return self._solve_rotated(matrices, self.output_factor[units], damping)
        values, vectors = torch.linalg.eigh(self.output_factor[units][:, units])
        result: Tensor = vectors @ self._solve_rotated(vectors.T @ matrices, values.clamp_min(0), damping)
        return result

    def _solve_rotated(self, matrices: Tensor, outputs: Tensor, damping: float) -> Tensor:
        """The same where B is diagonal."""
        plain = 1 / (outputs * self.mean_of_rest + damping)[:, None]
        along = 1 / (outputs[:, None] * self.input_eigenvalues + damping)
        vectors = self.input_eigenvectors
        return matrices * plain + ((matrices @ vectors) * (along - plain)) @ vectors.T

    @property
    def trace(self) -> float:
        """Sum of its eigenvalues."""
        outputs = self.output_factor.sum() if self.output_factor.ndim == 1 else self.output_factor.trace()
        width, rank = self.input_eigenvectors.shape
        return float(outputs * (self.input_eigenvalues.sum() + (width - rank) * self.mean_of_rest))

    def to(self, device: torch.device) -> KroneckerFactors:
        """The same on another device."""
        return KroneckerFactors(
            self.output_factor.to(device),
            self.input_eigenvalues.to(device),
            self.input_eigenvectors.to(device),
            self.mean_of_rest,
        )


@dataclass(frozen=True)
class Diagonal:
    """Σ v², of a layer whose inputs and outputs can't be seen from outside."""

    values: Tensor
    """Units × width."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(Σ v² + damping)⁻¹ times each of a stack of matrices, units × width."""
        return matrices / (self.values[units] + damping)

    @property
    def trace(self) -> float:
        """Sum of its eigenvalues."""
        return float(self.values.sum())

    def to(self, device: torch.device) -> Diagonal:
        """The same on another device."""
        return Diagonal(self.values.to(device))
