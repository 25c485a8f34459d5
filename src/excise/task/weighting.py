"""Weights of samples: a loss whose targets carry, beside what is to be answered, how much each sample counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from excise.errors import InputError
from excise.task.losses import SampleLosses, is_classification, of_torch, same_as_module


@dataclass(frozen=True)
class SampleWeighted:
    """A loss of torch's in which each sample counts as much as the last column of the targets says.

    The objective is then the mean of weight · loss over the training set: give weights a mean of 1, or scale
    ``weight_decay`` by theirs. Targets are rows (target, weight), of every set: ``test_set`` too, where the weights are
    not looked at. Classes may be numbers such as 3.0; probabilities and several labels take a column each.

    Args:
        loss: Such as ``nn.CrossEntropyLoss()``; of its ``reduction`` nothing is left.

    >>> from torch import nn
    >>> loss = SampleWeighted(nn.MSELoss())
    >>> loss(torch.tensor([[1.0], [1.0]]), torch.tensor([[3.0, 1.0], [3.0, 0.5]])).tolist()
    [4.0, 2.0]
    """

    loss: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if not of_torch(self.module):
            raise InputError(
                f"loss must be one of torch's, such as nn.CrossEntropyLoss(), not {self.loss!r:.80}; one of your own "
                "can multiply by a column of its targets itself."
            )

    @property
    def module(self) -> Any:
        """The loss, where a function of torch was given as the module for it."""
        return same_as_module(self.loss)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weighted losses of a batch."""
        return WeightedSampleLosses(self)(outputs, targets)

    def plain(self, targets: Tensor) -> Tensor:
        """What is to be answered: whole numbers where these are classes."""
        _require_column(targets)
        if is_classification(self.module) and targets.shape[1] == 2:
            return targets[:, 0].long()
        return targets[:, :-1]

    def weights(self, targets: Tensor) -> Tensor:
        """How much each sample counts."""
        _require_column(targets)
        return targets[:, -1]


class WeightedSampleLosses:
    """As ``SampleLosses``, times the weights."""

    def __init__(self, loss: SampleWeighted) -> None:
        self._weighting, self.unweighted = loss, SampleLosses(loss.module)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch."""
        plain = fitted(self._weighting.plain(targets), outputs)
        losses = self.unweighted(outputs, plain)
        each = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        return self._weighting.weights(targets).to(each) * each

    def cross_entropy_weights(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """As that of ``SampleLosses``, times the weights."""
        found = self.unweighted.cross_entropy_weights(outputs, self._weighting.plain(targets))
        return None if found is None else found * self._weighting.weights(targets).to(found)


def fitted(targets: Tensor, outputs: Tensor) -> Tensor:
    """Numbers that are to be answered, in the shape of the outputs."""
    if targets.is_floating_point() and targets.ndim == 2 and outputs.ndim == 1 and targets.shape[1] == 1:
        return targets[:, 0]
    return targets


def with_weight_one(targets: Tensor) -> Tensor:
    """The same targets of samples that all count once."""
    _require_column(targets)
    return torch.cat([targets[:, :-1], torch.ones_like(targets[:, -1:])], 1)


def require_weights(weights: Tensor) -> None:
    """Refuse weights that turn a loss upside down, or make no number of it."""
    wrong = ~(weights.isfinite() & (weights >= 0))
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise InputError(
            f"the weight of sample {place} is {float(weights[place]):g}; weights must be finite and not negative."
        )


def _require_column(targets: Tensor) -> None:
    if targets.ndim != 2 or targets.shape[1] < 2:
        raise InputError(
            f"targets of shape {tuple(targets.shape)} carry no weights: SampleWeighted takes rows (target, weight), "
            "such as torch.stack([labels.double(), weights], 1), in the test set too."
        )
