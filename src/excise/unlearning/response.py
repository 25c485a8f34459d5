"""How retained samples resist: what a model would say if some samples stopped pulling at it.

Take the network as linear in its weights, and the loss as it is. With K the kernel of the samples' margins
(∇φ C⁻¹ ∇φᵀ / n), samples that are forgotten let go of r = σ(-φ), their pull, and margins fall. The margins of retained
samples fall as well, so that these pull harder, until all is at rest again:

    φ = φ₀ - K_F r_F(φ₀) + K_R (r_R(φ) - r_R(φ₀)).

A Newton step has no such resistance: where the model is sure of its samples their curvature is next to 0, and stays so
however far the step goes. That is why it is right for a few random samples and far too long for a quarter of a class.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_ITERATIONS, CLOSE_ENOUGH = 30, 1e-6
LEAST_SHARE = 1e-3  # of a Newton step, below which it is taken as it is


def pull(margins: Tensor, weights: Tensor) -> Tensor:
    """How hard each sample pulls at its margin: r = -∂ℓ/∂φ."""
    return weights * torch.sigmoid(-margins)


def added_pull(kernel: Tensor, margins: Tensor, weights: Tensor, push: Tensor) -> Tensor:
    """How much harder retained samples pull, r(φ) - r(φ₀), once their margins are pushed and all is at rest.

    Args:
        kernel: Of the retained samples, in double precision.
        margins: φ₀.
        weights: How much each sample's loss counts.
        push: What the forgotten samples' margins take theirs down by.

    >>> one = torch.ones(1, 1, dtype=torch.double)
    >>> rest = added_pull(one, 0 * one[0], one[0], -2 * one[0])
    >>> bool((rest - (torch.sigmoid(2 - rest) - 0.5)).abs() < 1e-6)  # u = σ(-φ) - σ(0), φ = 0 - 2 + u
    True
    """
    before = pull(margins, weights)
    added = torch.zeros_like(margins)

    def miss(added: Tensor) -> tuple[Tensor, Tensor]:
        now = pull(margins + push + kernel @ added, weights)
        return added - (now - before), now

    left, now = miss(added)
    for _ in range(MOST_ITERATIONS):
        if not bool((left.abs() >= CLOSE_ENOUGH).any()):
            break
        bend = now * (1 - now / weights.clamp_min(1e-12))  # -∂r/∂φ
        step = torch.linalg.solve(torch.eye(len(added)).to(kernel) + bend[:, None] * kernel, -left)
        share = 1.0
        while True:
            following, pulled = miss(added + share * step)
            if following.abs().sum() < (1 - 0.1 * share) * left.abs().sum() or share < LEAST_SHARE:
                break
            share /= 2
        added, left, now = added + share * step, following, pulled
    return added
