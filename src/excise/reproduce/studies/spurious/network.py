"""A network that learns a label, and by reversed gradients not to see some outside factors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class _Reversal(torch.autograd.Function):
    """Nothing on the way forward; on the way back, the gradient is turned round and scaled."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(features: Tensor, strength: float) -> Tensor:
    """The features, whose gradient comes back with the opposite sign (Ganin and Lempitsky, 2015).

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> reverse_gradient(x, 0.5).square().backward()  # 2x, were it not reversed
    >>> x.grad.item()
    -3.0
    """
    reversed_: Tensor = _Reversal.apply(features, strength)  # type: ignore[no-untyped-call]
    return reversed_


class Regularised(nn.Module):
    """A small convolutional network with a logistic head for the label, and one for every factor to be forgotten.

    The heads of the factors learn to tell them from the features; the features learn to be of no use to these heads.
    """

    def __init__(self, factors: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(16 * 8 * 8, 32),
            nn.ReLU(),
        )
        self.label = nn.Linear(32, 1)
        self.factors = nn.Linear(32, factors) if factors else None

    def forward(self, images: Tensor, strength: float = 0.0) -> tuple[Tensor, Tensor | None]:
        """The logits of the label (n,) and of the factors (n, factors), for images of bytes."""
        features = self.features(images.float() / 127.5 - 1)
        label = self.label(features)[:, 0]
        return label, None if self.factors is None else self.factors(reverse_gradient(features, strength))


def ramp(done: float) -> float:
    """From 0 at the start of training to 1 at its end, as is usual for gradient reversal: features come first.

    >>> ramp(0.0), round(ramp(0.5), 3), round(ramp(1.0), 3)
    (0.0, 0.987, 1.0)
    """
    return 2 / (1 + math.exp(-10 * done)) - 1
