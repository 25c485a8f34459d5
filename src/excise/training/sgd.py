"""SGD by torch's own arithmetic, without its optimiser class, whose first object waits for torch's compiler to load.

That takes a second or more of every process: longer than a request of a small network.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.sgd import sgd


class Optimizer(Protocol):
    """What a training loop asks of an optimiser; those of torch have it."""

    param_groups: list[dict[str, Any]]

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def step(self) -> object:
        """Move the weights."""


class SGD:
    """Steps down the gradient, as ``torch.optim.SGD`` takes them, to the last bit.

    >>> weight = torch.tensor([1.0], requires_grad=True)
    >>> steps = SGD([weight], lr=0.5)
    >>> (weight**2).sum().backward()
    >>> steps.step()
    >>> weight.tolist()
    [0.0]
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(weights), "lr": lr}]
        self._momentum, self._weight_decay, self._foreach = momentum, weight_decay, foreach
        self._velocities: dict[int, Tensor | None] = {}

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for weight in self._weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights that have a gradient."""
        places = [place for place, weight in enumerate(self._weights) if weight.grad is not None]
        weights = [self._weights[place] for place in places]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        velocities = [self._velocities.get(place) for place in places]
        sgd(
            weights,
            gradients,
            velocities,
            has_sparse_grad=any(gradient.is_sparse for gradient in gradients),
            foreach=self._foreach,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self.param_groups[0]["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocities.update(zip(places, velocities, strict=True))

    @property
    def _weights(self) -> list[Tensor]:
        weights: list[Tensor] = self.param_groups[0]["params"]
        return weights
