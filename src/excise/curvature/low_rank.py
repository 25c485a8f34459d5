"""The leading right singular vectors of a matrix, of a wide one by random products (Halko, Martinsson and Tropp 2011).

``torch.svd_lowrank`` does much the same with the process's random state, which threads share. Where one side of the
matrix is short nothing is left to chance: products of all its rows, or columns, with each other cost less.
"""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS = 5
SHORT = 8  # times the number of vectors asked for, up to which a side is short


def leading_directions(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest singular values and their right singular vectors, as columns; the same at every call.

    >>> singular, vectors = leading_directions(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 3)
    >>> [round(one, 4) for one in singular.tolist()], [round(abs(one), 4) for one in vectors[:, 0].tolist()]
    ([3.0, 2.0, 1.0], [0.0, 1.0, 0.0])
    """
    tall = matrix if len(matrix) >= matrix.shape[1] else matrix.T
    basis = None if tall.shape[1] <= SHORT * count else _leading_range(tall, count)
    image = tall if basis is None else tall @ basis
    values, vectors = torch.linalg.eigh(image.T @ image)
    singular, vectors = values.flip(0)[:count].clamp_min(0).sqrt(), vectors.flip(1)[:, :count]
    if tall is matrix:
        return singular, vectors if basis is None else basis @ vectors
    return singular, torch.linalg.qr(image @ vectors).Q  # at right angles already, but for rounding where a value is 0


def _leading_range(tall: Tensor, count: int) -> Tensor:
    """Vectors at right angles that span nearly what the leading right singular vectors do."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(tall.shape[1], count, generator=generator, dtype=tall.dtype).to(tall.device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(tall.T @ (tall @ basis)).Q
    return basis
