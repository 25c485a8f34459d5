"""The leading right singular vectors of a matrix, by random products (Halko, Martinsson and Tropp 2011, alg. 4.4, 5.1).

``torch.svd_lowrank`` does the same with the process's random state, which threads share. Where one side of the matrix
is hardly longer than asked for nothing is left to chance: the products of all its vectors with each other cost less.
"""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS = 4
SHORT = 2  # times the number of vectors asked for, up to which a side is short


def leading_directions(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest singular values and their right singular vectors, as columns; the same at every call.

    >>> singular, vectors = leading_directions(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 3)
    >>> [round(one, 4) for one in singular.tolist()], [round(abs(one), 4) for one in vectors[:, 0].tolist()]
    ([3.0, 2.0, 1.0], [0.0, 1.0, 0.0])
    """
    tall = matrix if len(matrix) >= matrix.shape[1] else matrix.T
    if tall.shape[1] <= SHORT * count:
        return _by_products(matrix, tall, count)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(tall.shape[1], count, generator=generator, dtype=tall.dtype).to(tall.device)
    basis = torch.linalg.qr(tall @ start).Q
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(tall @ torch.linalg.qr(tall.T @ basis).Q).Q
    left, singular, right = torch.linalg.svd(basis.T @ tall, full_matrices=False)
    return singular, right.T if tall is matrix else basis @ left


def _by_products(matrix: Tensor, tall: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same by the smaller Gram matrix, in double precision: its eigenvalues are squares of what is looked for."""
    precise = tall.double()
    values, vectors = torch.linalg.eigh(precise.T @ precise)
    singular, vectors = values.flip(0)[:count].clamp_min(0).sqrt(), vectors.flip(1)[:, :count]
    if tall is not matrix:
        vectors = torch.linalg.qr(precise @ vectors).Q  # at right angles already, but for those of value 0
    return singular.to(matrix), vectors.to(matrix)
