"""Going backwards through a model from given derivatives of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pulled_back(
    outputs: Tensor, of: Sequence[Tensor], cotangents: Tensor, *, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """Jᵀc for each of the tensors; 0 for what has no influence on the outputs.

    It is the gradient of a sum, the same to the last bit: for ``grad_outputs`` torch imports what it needs for symbolic
    shapes, which takes a second of every process.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pulled_back(x**2, [x, torch.ones(1, requires_grad=True)], torch.tensor([1.0, 10.0]))
    (tensor([ 2., 40.]), tensor([0.]))
    """
    if not of:
        return ()
    with torch.enable_grad():
        total = (outputs * cotangents).sum()
    return torch.autograd.grad(total, list(of), retain_graph=retain_graph, allow_unused=True, materialize_grads=True)
