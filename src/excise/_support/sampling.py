"""Drawing few of many, large ones rather than small ones, so that sums over all can be told from the few."""

from __future__ import annotations

import torch
from torch import Tensor

from excise.errors import InputError


class NotFiniteError(InputError):
    """Some sizes are no numbers; who knows the samples can say which."""


def draw_proportionally(sizes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of about ``count`` draws, without repetition, and the probability π with which each was included.

    π is in proportion to size, and 1 for those so large that they are always drawn; Σ x/π over the draws is an unbiased
    estimate of Σ x over all. What has size 0 is never drawn.

    >>> drawn, inclusion = draw_proportionally(torch.tensor([5.0, 0.0, 1.0, 1.0]), 2, torch.Generator().manual_seed(0))
    >>> int(drawn[0]), float(inclusion[0]), float(inclusion[1])
    (0, 1.0, 0.5)
    """
    if not sizes.isfinite().all():
        raise NotFiniteError(
            f"{int((~sizes.isfinite()).sum())} of {len(sizes)} samples have losses that are not finite numbers; see "
            "whether the model's training diverged, and whether the samples have values that are no numbers."
        )
    inclusion = _inclusion(sizes.double().cpu(), count)
    # in the order of their sizes, so that every draw has its share of large and of small ones
    order = torch.randperm(len(inclusion), generator=generator)  # among equals, any
    order = order[inclusion[order].argsort(stable=True)]
    marks = inclusion[order].cumsum(0) + torch.rand((), generator=generator, dtype=torch.float64)
    # a unit is drawn when the running sum passes a whole number within it
    passed = marks.floor() > (marks - inclusion[order]).floor()
    drawn = order[passed].sort().values
    return drawn, inclusion[drawn]


def draw_by_loss(losses: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same with sizes half of which are losses, and half of which are the same for all: none is left out."""
    sizes = losses - losses.min().clamp(max=0)  # some losses, such as of densities, are negative
    return draw_proportionally(sizes + sizes.mean() + 1e-12, count, generator)


def _inclusion(sizes: Tensor, count: int) -> Tensor:
    """min(1, c · size) with c such that they sum to the count, or 1 for all that have a size."""
    certain = torch.zeros(len(sizes), dtype=torch.bool)
    while True:
        rest = torch.where(certain, 0.0, sizes)
        share = rest * ((count - int(certain.sum())) / rest.sum().clamp_min(1e-300))
        over = share >= 1
        if not over.any():
            return torch.where(certain, 1.0, share)
        certain |= over
