"""Woodbury's identity: a solve with K + Sᵀ diag(s) S from solves with K, for few rows S.

(K + Sᵀ diag(s) S)⁻¹ b = K⁻¹b - K⁻¹Sᵀ (diag(1/s) + S K⁻¹ Sᵀ)⁻¹ S K⁻¹b
"""

from __future__ import annotations

import torch
from torch import Tensor


def woodbury(
    found: Tensor,
    rows: Tensor,
    images: Tensor,
    gram: Tensor,
    *,
    signs: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """The solution, from K⁻¹b, S, S K⁻¹ and S K⁻¹ Sᵀ.

    ``signs`` are s, by default all 1. ``kept`` says which rows count, by default all: without a copy of the others.
    """
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device) if kept is None else kept
    inverse_signs = torch.ones(len(rows)).to(gram) if signs is None else 1 / signs
    small = gram[kept][:, kept] + torch.diag(inverse_signs[kept])
    weights = torch.zeros(len(rows)).to(gram)
    weights[kept] = torch.linalg.solve(small, (rows @ found)[kept])
    solution: Tensor = found - weights @ images
    return solution


def woodbury_of_multiple(b: Tensor, rows: Tensor, damping: float, signs: Tensor | None = None) -> Tensor:
    """The same for K = λI."""
    return woodbury(b / damping, rows, rows / damping, rows @ rows.T / damping, signs=signs)
