"""The leading right singular vectors of a matrix, by random products (Halko, Martinsson and Tropp 2011, alg. 4.4, 5.1).

``torch.svd_lowrank`` does the same with the process's random state, which threads share.
"""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS = 4


def leading_directions(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest singular values and their right singular vectors, as columns; the same at every call.

    >>> singular, vectors = leading_directions(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 3)
    >>> [round(one, 4) for one in singular.tolist()], [round(abs(one), 4) for one in vectors[:, 0].tolist()]
    ([3.0, 2.0, 1.0], [0.0, 1.0, 0.0])
    """
    tall = matrix if len(matrix) >= matrix.shape[1] else matrix.T
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(tall.shape[1], count, generator=generator, dtype=tall.dtype).to(tall.device)
    basis = torch.linalg.qr(tall @ start).Q
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(tall @ torch.linalg.qr(tall.T @ basis).Q).Q
    left, singular, right = torch.linalg.svd(basis.T @ tall, full_matrices=False)
    return singular, right.T if tall is matrix else basis @ left
