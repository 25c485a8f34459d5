"""A matrix for each sample, units × width of a layer, such as its gradient: any, or an outer product not multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from excise.curvature.spill import Spill


@dataclass(frozen=True)
class OuterRows:
    """δ aᵀ of each sample.

    >>> rows = OuterRows(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 0.0]]))
    >>> rows.dense.tolist(), rows.kernel(rows).item()
    ([[[3.0, 4.0, 0.0], [6.0, 8.0, 0.0]]], 125.0)
    """

    outputs: Tensor
    """δ, samples × units."""
    inputs: Tensor
    """a, samples × width."""

    @property
    def shape(self) -> tuple[int, int]:
        """Units and width."""
        return self.outputs.shape[1], self.inputs.shape[1]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.outputs.device

    @property
    def dense(self) -> Tensor:
        """Samples × units × width."""
        return self.outputs[:, :, None] * self.inputs[:, None]

    @property
    def norms(self) -> Tensor:
        """Of each sample."""
        return (self.outputs**2).sum(1).sqrt() * (self.inputs**2).sum(1).sqrt()

    def at(self, which: Tensor) -> OuterRows:
        """Those of some of the samples."""
        return OuterRows(self.outputs[which], self.inputs[which])

    def of_units(self, units: Tensor) -> OuterRows:
        """Some rows of each matrix."""
        return OuterRows(self.outputs[:, units], self.inputs)

    def to(self, device: torch.device) -> OuterRows:
        """The same on another device."""
        return OuterRows(self.outputs.to(device), self.inputs.to(device))

    def kept_in(self, spill: Spill) -> OuterRows:
        """The same with their tensors where these are to be kept."""
        return OuterRows(spill.keep(self.outputs), spill.keep(self.inputs))

    def combined(self, weights: Tensor) -> Tensor:
        """Σ of weight times matrix."""
        return (weights[:, None] * self.outputs).T @ self.inputs

    def kernel(self, other: Rows) -> Tensor:
        """Inner products with the matrices of other samples."""
        if isinstance(other, DenseRows):
            return torch.einsum("nu,muw,nw->nm", self.outputs, other.dense, self.inputs)
        return (self.outputs @ other.outputs.T) * (self.inputs @ other.inputs.T)


@dataclass(frozen=True)
class DenseRows:
    """Any matrices."""

    dense: Tensor
    """Samples × units × width."""

    @property
    def shape(self) -> tuple[int, int]:
        """Units and width."""
        return self.dense.shape[1], self.dense.shape[2]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.dense.device

    @property
    def norms(self) -> Tensor:
        """Of each sample."""
        return (self.dense**2).sum((1, 2)).sqrt()

    def at(self, which: Tensor) -> DenseRows:
        """Those of some of the samples."""
        return DenseRows(self.dense[which])

    def of_units(self, units: Tensor) -> DenseRows:
        """Some rows of each matrix."""
        return DenseRows(self.dense[:, units])

    def to(self, device: torch.device) -> DenseRows:
        """The same on another device."""
        return DenseRows(self.dense.to(device))

    def kept_in(self, spill: Spill) -> DenseRows:
        """The same with their tensor where that is to be kept."""
        return DenseRows(spill.keep(self.dense))

    def combined(self, weights: Tensor) -> Tensor:
        """Σ of weight times matrix."""
        return torch.einsum("n,nuw->uw", weights, self.dense)

    def kernel(self, other: Rows) -> Tensor:
        """Inner products with the matrices of other samples."""
        if isinstance(other, OuterRows):
            return other.kernel(self).T
        return self.dense.flatten(1) @ other.dense.flatten(1).T


Rows = OuterRows | DenseRows


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    outer = [one for one in parts if isinstance(one, OuterRows)]
    if len(outer) < len(parts):
        return DenseRows(torch.cat([one.dense for one in parts]))
    return OuterRows(torch.cat([one.outputs for one in outer]), torch.cat([one.inputs for one in outer]))


def parts_of(rows: Rows) -> tuple[Tensor, ...]:
    """The tensors that they are made of, with samples along the first axis."""
    return (rows.outputs, rows.inputs) if isinstance(rows, OuterRows) else (rows.dense,)
