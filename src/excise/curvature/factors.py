"""The curvature of one layer: Kronecker factors B ⊗ A, or a diagonal where these can't be seen (see ``kfac``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from excise.curvature.spill import Spill
from excise.curvature.whitened import Whitening


class LayerCurvature(Protocol):
    """The curvature of one layer, without the exact rows."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(C_PP + damping I)⁻¹ of each of a stack of matrices, units × width, on some of the layer's units."""
        ...

    def whitening(self, units: Tensor, damping: float, times: float = 1.0) -> Whitening:
        """((C_PP + damping I) · times)^-½ on some of the layer's units."""
        ...

    @property
    def trace(self) -> float:
        """Sum of its eigenvalues."""
        ...

    def to(self, device: torch.device) -> LayerCurvature:
        """The same on another device."""
        ...

    def kept_in(self, spill: Spill) -> LayerCurvature:
        """The same with its tensors where these are to be kept."""
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
    spill: Spill | None = field(default=None, repr=False, compare=False)
    """Where what is computed of it is kept; None for memory."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(B_PP ⊗ A + damping I)⁻¹ of each of a stack of matrices, units × width."""
        values, vectors = self._output_eigenpairs(units)
        if vectors is None:
            return self._solve_rotated(matrices, values, damping)
        return vectors @ self._solve_rotated(vectors.T @ matrices, values, damping)

    def _solve_rotated(self, matrices: Tensor, outputs: Tensor, damping: float) -> Tensor:
        """The same where B is diagonal."""
        plain = 1 / (outputs * self.mean_of_rest + damping)[:, None]
        along = 1 / (outputs[:, None] * self.input_eigenvalues + damping)
        vectors = self.input_eigenvectors
        return matrices * plain + ((matrices @ vectors) * (along - plain)) @ vectors.T

    def whitening(self, units: Tensor, damping: float, times: float = 1.0) -> Whitening:
        """((B_PP ⊗ A + damping I) · times)^-½."""
        outputs, rotation = self._output_eigenpairs(units)
        along = (outputs[:, None] * self.input_eigenvalues + damping) * times
        across = (outputs[:, None] * self.mean_of_rest + damping) * times
        return Whitening(rotation, self.input_eigenvectors, along.rsqrt(), across.rsqrt())

    def _output_eigenpairs(self, units: Tensor) -> tuple[Tensor, Tensor | None]:
        """Those of B_PP; no vectors where it is diagonal."""
        if torch.equal(units, torch.arange(len(self.output_factor)).to(units)):
            return self._all_output_eigenpairs
        of_units = self.output_factor[units]
        return _eigenpairs(of_units if of_units.ndim == 1 else of_units[:, units])

    @cached_property
    def _all_output_eigenpairs(self) -> tuple[Tensor, Tensor | None]:
        """Those of B, which every step of all slices asks for."""
        values, vectors = _eigenpairs(self.output_factor)
        return values, vectors if vectors is None or self.spill is None else self.spill.keep(vectors)

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

    def kept_in(self, spill: Spill) -> KroneckerFactors:
        """The same with its tensors where these are to be kept."""
        return KroneckerFactors(
            spill.keep(self.output_factor),
            self.input_eigenvalues,
            spill.keep(self.input_eigenvectors),
            self.mean_of_rest,
            spill,
        )


@dataclass(frozen=True)
class Diagonal:
    """Σ v², of a layer whose inputs and outputs can't be seen from outside."""

    values: Tensor
    """Units × width."""

    def solve(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(Σ v² + damping)⁻¹ times each of a stack of matrices, units × width."""
        return matrices / (self.values[units] + damping)

    def whitening(self, units: Tensor, damping: float, times: float = 1.0) -> Whitening:
        """((Σ v² + damping) · times)^-½, of each weight by itself: no directions have to be kept."""
        across = ((self.values[units] + damping) * times).rsqrt()
        return Whitening(None, across.new_zeros(across.shape[1], 0), across.new_zeros(len(across), 0), across)

    @property
    def trace(self) -> float:
        """Sum of its eigenvalues."""
        return float(self.values.sum())

    def to(self, device: torch.device) -> Diagonal:
        """The same on another device."""
        return Diagonal(self.values.to(device))

    def kept_in(self, spill: Spill) -> Diagonal:
        """The same with its tensor where that is to be kept."""
        return Diagonal(spill.keep(self.values))


def _eigenpairs(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    if factor.ndim == 1:
        return factor, None
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp_min(0), vectors
