"""How far rounding can have put a computed gradient off: the margin of certificates.

The model that is handed out has float weights w', which double precision holds exactly, as it does what the layer sees.
The gradient of a linear layer, (1/n) Σ pᵢ aᵢᵀ + λw with pᵢ the gradient of the loss by the outputs zᵢ = W aᵢ + b, is
then computed in double precision, of unit roundoff u = 2⁻⁵³. With γ(k) = k u / (1 - k u), as in Higham (2002, ch. 3):

- a sum of d + 1 products is off by at most γ(d + 1) times the sum of their sizes, so that z is off by at most
  e = γ(d + o + 16) ‖|W||a| + |b| + 1‖, where o outputs and 16 more steps are for a softmax, whose exponents are off by
  u |z| each;
- p is then off by at most β e + γ(16) ‖p‖, where β is a Lipschitz constant of the loss's gradient by the outputs;
- the sum over n samples is off by at most γ(n + 8) Σ ‖p‖ ‖a‖, the weight decay by γ(8) λ ‖w‖, and the norm of m numbers
  by γ(m + 8) of itself.

What is read and computed before the layer (by a frozen network, say) may differ in other batches by Δ, which puts the
gradient off by at most ‖p‖ Δ + β ‖W‖ Δ ‖a‖: this is added, as it was measured. Absolute values (``L1Loss``) have no β,
but where an output is so near to the target that the sign of the difference is not certain, p is off by 2 at most. All
is doubled, for the rounding of the margin itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from excise import processes

UNIT = 2.0**-53


def gamma(steps: float) -> float:
    """γ(k), by which so many roundings in a row can put a number off, as a share of it."""
    if steps * UNIT >= 1:
        return math.inf
    return steps * UNIT / (1 - steps * UNIT)


def has_kinks(loss: Any) -> bool:
    """Whether the loss is an absolute value, whose gradient jumps."""
    return type(loss) is nn.L1Loss or (type(loss) is nn.SmoothL1Loss and loss.beta == 0)


def smoothness(loss: Any, outputs: int, scale: float) -> float:
    """β: by how much the gradient of a sample's loss by its outputs changes, at most, as a multiple of their change."""
    if has_kinks(loss):
        return 0.0
    if type(loss) is nn.SmoothL1Loss:
        return 1 / float(loss.beta)
    if type(loss) in (nn.MSELoss, nn.HuberLoss):
        return 2.0
    weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    largest = math.prod(max(1.0, float(one.max())) for one in weights if isinstance(one, Tensor))
    return largest * max(1, outputs) / scale  # targets may be as many probabilities as there are outputs


@dataclass
class Margin:
    """Adds up, batch by batch, how far the sum of gradients can be off."""

    beta: float
    kinks: bool
    size_of_weights: float
    """‖W‖."""
    _rows: int = field(default=0, init=False)
    _off: float = field(default=0.0, init=False)
    _total: float = field(default=0.0, init=False)
    _squares: float = field(default=0.0, init=False)
    _bent: float = field(default=0.0, init=False)

    def add(
        self, seen: Tensor, slopes: Tensor, reach: Tensor, gaps: Tensor | None, moved: Tensor, shares: Tensor
    ) -> None:
        """Count a batch, of which the first dimension is samples.

        Args:
            seen: What the layer saw, with a 1 for its bias.
            slopes: p.
            reach: |W||a| + |b|.
            gaps: Outputs minus targets, where the loss has kinks.
            moved: Δ of each sample.
            shares: How much each sample counts, by which its β is larger.
        """
        inputs, slope = _norms(seen), _norms(slopes)
        outputs = _norms(reach + 1) * gamma(seen.shape[-1] + slopes.shape[-1] + 16)
        shift = self.size_of_weights * moved
        off = inputs * (self.beta * shares * (outputs + shift) + gamma(16) * slope) + slope * moved
        if self.kinks and gaps is not None:
            uncertain = gaps.abs().flatten(1) <= (outputs + shift)[:, None]
            off = off + 2 * shares * uncertain.sum(1).sqrt() * inputs
        self._off += float(off.sum())
        self._total += float((slope * inputs).sum())
        self._squares += float((shares * inputs**2).sum())
        self._bent += float((shares * moved * (2 * inputs + moved + 2 * self.size_of_weights * inputs**2)).sum())
        self._rows += seen[..., 0].numel()

    def of_all_processes(self) -> None:
        """Count the batches of other processes too."""
        own = torch.tensor([self._off, self._total, self._squares, self._bent, float(self._rows)], dtype=torch.float64)
        off, total, squares, bent, rows = processes.total([own], "margin of rounding")[0].tolist()
        self._off, self._total, self._squares, self._bent, self._rows = off, total, squares, bent, int(rows)

    def of_gradient(self, norm: float, decay: float, weights: Tensor, mass: float) -> float:
        """By how much ‖∇F‖ can be larger than what was computed as a sum over samples by this mass."""
        mean = (self._off + gamma(self._rows + 8) * self._total) / mass
        own = gamma(8) * decay * float(weights.norm()) + gamma(len(weights) + 8) * norm
        return 2 * (mean + own)

    def of_hessian(self, decay: float, columns: int, mass: float) -> float:
        """By how much a product with ∇²F can be off, as a multiple of the vector's length.

        It is a sum over samples of β ‖a‖² at most, which rounding puts off as it does the gradient. What the layer
        sees may differ by Δ, which changes aaᵀ by 2‖a‖Δ + Δ², and ∇²ℓ by 2β ‖W‖ Δ.
        """
        rounded = gamma(self._rows + columns + 64) * (self.beta * self._squares / mass + decay)
        return 2 * (rounded + self.beta * self._bent / mass)

    def of_rounded_weights(self, epsilon: float, decay: float, weights: Tensor, mass: float) -> float:
        """A gradient that is left at the minimum, once its weights are rounded to a precision of ε."""
        return 2 * epsilon * float(weights.norm()) * (self.beta * self._squares / mass + decay)


def _norms(tensor: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(tensor.flatten(1), dim=1)
    return found
