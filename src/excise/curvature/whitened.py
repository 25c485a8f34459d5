"""Gradients of samples as the inverse curvature sees them: W = K^-½ ∇φ, so that a kernel ∇φ K⁻¹ ∇φᵀ is a plain product.

In the eigenvectors U of B, K = B ⊗ A + λI takes each unit p by itself: by bₚ aᵩ + λ along the kept eigenvectors V of A,
and by bₚ r + λ across them, with r the mean of A's other eigenvalues. So a whitened row has two parts: one along V, of
few columns, and one across it, which is an outer product if the row is one. No row is ever solved by itself: of a step
K⁻¹ Σ c ∇φ = K^-½ Σ c W the sum is made first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from excise.curvature.rows import DenseRows, OuterRows, Rows, joined


@dataclass(frozen=True)
class Whitening:
    """K^-½ of one layer."""

    rotation: Tensor | None
    """U; None where B is diagonal."""
    directions: Tensor
    """V, width × rank."""
    along: Tensor
    """(bₚ aᵩ + λ)^-½, units × rank."""
    across: Tensor
    """(bₚ r + λ)^-½, units × 1; of a curvature that is diagonal, units × width."""

    def __call__(self, rows: Rows) -> LayerRows:
        """The rows, whitened."""
        if isinstance(rows, OuterRows):
            outputs = rows.outputs if self.rotation is None else rows.outputs @ self.rotation
            inputs = rows.inputs @ self.directions
            rest = OuterRows(outputs * self.across[:, 0], rows.inputs - inputs @ self.directions.T)
            return LayerRows(DenseRows(outputs[:, :, None] * inputs[:, None] * self.along), rest)
        rotated = rows.dense if self.rotation is None else self.rotation.T @ rows.dense
        leading = rotated @ self.directions
        rest_of_all = rotated - leading @ self.directions.T if leading.shape[2] else rotated
        return LayerRows(DenseRows(leading * self.along), DenseRows(rest_of_all * self.across))

    def solved(self, rows: LayerRows, weights: Tensor) -> Tensor:
        """K⁻¹ Σ of weight times row, units × width."""
        leading, rest = rows.leading.combined(weights), rows.rest.combined(weights)
        found = (leading * self.along) @ self.directions.T + rest * self.across
        return found if self.rotation is None else self.rotation @ found


@dataclass(frozen=True)
class LayerRows:
    """Whitened rows of some samples, of one layer."""

    leading: DenseRows
    """Along V."""
    rest: Rows
    """Across it."""


@dataclass(frozen=True)
class WhitenedRows:
    """The same of all layers."""

    by: tuple[Whitening, ...]
    layers: tuple[LayerRows, ...]

    @staticmethod
    def of(by: tuple[Whitening, ...], rows: list[Rows]) -> WhitenedRows:
        """Whiten rows, layer by layer."""
        return WhitenedRows(by, tuple(whiten(one) for whiten, one in zip(by, rows, strict=True)))

    def at(self, which: Tensor) -> WhitenedRows:
        """Those of some of the samples."""
        return WhitenedRows(self.by, tuple(LayerRows(one.leading.at(which), one.rest.at(which)) for one in self.layers))

    def joined(self, other: WhitenedRows) -> WhitenedRows:
        """Those of both."""
        pairs = zip(self.layers, other.layers, strict=True)
        layers = [
            LayerRows(DenseRows(torch.cat([a.leading.dense, b.leading.dense])), joined([a.rest, b.rest]))
            for a, b in pairs
        ]
        return WhitenedRows(self.by, tuple(layers))

    def kernel(self, other: WhitenedRows) -> Tensor:
        """∇φ K⁻¹ ∇φᵀ with other samples, in double precision on the CPU."""
        pairs = zip(self.layers, other.layers, strict=True)
        found = [one.cpu().double() for a, b in pairs for one in (a.leading.kernel(b.leading), a.rest.kernel(b.rest))]
        return torch.stack(found).sum(0)

    def solved(self, weights: Tensor) -> Tensor:
        """K⁻¹ Σ of weight times row, as a vector."""
        each = zip(self.by, self.layers, strict=True)
        counts = weights.to(self.by[0].along)
        return torch.cat([by.solved(rows, counts).flatten() for by, rows in each])
