"""The paper's update as its published code has it, except that the Hessian of the sample is really computed.

The curvature of the training set is the rank-one finite difference of the gradients of the last two epochs, that of the
sample one between the model and the same after a small step of SGD on it:

    H = (n · ddᵀ/‖Δw‖₁ - eeᵀ/‖Δw'‖₁) / (n - 1),    w_P += (H + λI)⁻¹ ∇ℓ / (n - 1),

followed by noise on the block. (The published code takes the sample's second gradient from the first one's variable, so
that e = 0.) It is here to be compared with: H has rank two, so that in all other directions the step is ∇ℓ / λ.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from excise import objective
from excise.curvature import rank_one_root
from excise.privacy import classic_sigma, newton_distance
from excise.slices import Block, trainable
from excise.task import Task, trained_parameters
from excise.training import GradientTrace

PAPER_COPIES = 1000
LIPSCHITZ, HESSIAN_LIPSCHITZ = 1.0, 0.25  # L and M that the published code takes for cross-entropy
SAMPLE_LR = 1e-3  # of the step that the sample's finite difference is taken over


def paper_change(task: Task, model: nn.Module, block: Block, sample: int, trace: GradientTrace, samples: int) -> Tensor:
    """What is added to the block to remove one of so many samples."""
    first = objective.gradient(task, model, [sample])
    slope = block.gather(first)
    if not slope.any():
        return slope
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in trained_parameters(moved).items():
            weight.sub_(SAMPLE_LR * first[name])
    second = objective.gradient(task, moved, [sample])
    of_all = rank_one_root(block, trace.gradients, trace.parameters).to(slope)
    before, after = trainable(model), trainable(moved)
    if torch.equal(block.gather(before), block.gather(after)):  # a gradient so small that rounding eats the step
        of_sample = torch.zeros_like(slope)
    else:
        of_sample = rank_one_root(block, (first, second), (before, after))
    signs = torch.tensor([float(samples), -1.0]).to(slope) / (samples - 1)
    return solve_rank_two(torch.stack([of_all, of_sample]), signs, slope, task.weight_decay) / (samples - 1)


def solve_rank_two(rows: Tensor, signs: Tensor, b: Tensor, damping: float) -> Tensor:
    """(Rᵀ diag(s) R + λI)⁻¹ b, by Woodbury's identity."""
    small = torch.diag(1 / signs) + rows @ rows.T / damping
    result: Tensor = (b - rows.T @ torch.linalg.solve(small, rows @ b) / damping) / damping
    return result


def paper_sigma(*, samples: int, weight_decay: float, epsilon: float, delta: float) -> float:
    """The noise of the published code: one sample at a time, never composed over requests."""
    distance = newton_distance(
        removed=1,
        samples=samples,
        lipschitz=LIPSCHITZ,
        hessian_lipschitz=HESSIAN_LIPSCHITZ,
        strong_convexity=weight_decay,
    )
    return classic_sigma(distance, epsilon, delta)
