"""Woodbury's identity: a solve with λI + Sᵀ diag(s) S, for few rows S, in the space of these.

(λI + Sᵀ diag(s) S)⁻¹ b = (b - Sᵀ (λ diag(1/s) + S Sᵀ)⁻¹ S b) / λ
"""

from __future__ import annotations

import torch
from torch import Tensor


def woodbury_of_multiple(b: Tensor, rows: Tensor, damping: float, signs: Tensor | None = None) -> Tensor:
    """The solution; ``signs`` are s, by default all 1."""
    inverse_signs = torch.ones(len(rows)).to(rows) if signs is None else 1 / signs
    small = rows @ rows.T / damping + torch.diag(inverse_signs)
    weights = torch.linalg.solve(small, rows @ (b / damping))
    solution: Tensor = b / damping - weights @ (rows / damping)
    return solution
