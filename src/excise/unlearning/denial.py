"""Denial: a loss that asks the opposite of the samples to forget, and no more than that.

A model that knows a class or a person by heart has hardly any gradient there, which is what Newton steps go by. The
loss -log(1 - p) of the probability p = e^-ℓ that the model gives to a sample's answer has its largest gradient just
there, and none where the answer is no longer given. That is also what retraining comes to: a model that never saw the
class does not name it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.turns import RoundRobin
from excise.task.losses import no_class
from excise.task.task import Task

LEAST_LOSS = 1e-7
"""Below, 1 - e^-ℓ is rounding error, and there is nothing to go by."""


class Denial:
    """Forgotten samples whose answers are denied, a few at a time."""

    def __init__(self, task: Task, ids: Tensor, *, size: int, seed: int) -> None:
        self._task, self._ids = task, ids
        self._turns = RoundRobin(len(ids), size, seed)

    def loss(self, model: nn.Module) -> Tensor:
        """Mean denial of the next few samples; of several processes, each has its part of it."""
        return processes.part_of_mean(self._ids[self._turns.next()], lambda some: self._denials(model, some))

    def _denials(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Of each sample; none of one without a label."""
        outputs, told = self._task.outputs(model, self._task.batch(ids))
        targets = self._task.plain_targets(told)
        if outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1 and not targets.is_floating_point():
            labelled = targets != no_class(self._task.loss_module)
            denials = torch.zeros(len(targets)).to(outputs)
            denials[labelled] = deny_classes(outputs[labelled], targets[labelled]).to(denials)
            return denials
        return deny(self._task.plain_losses(outputs, told))


def deny(losses: Tensor) -> Tensor:
    """-log(1 - e^-ℓ) of every loss ℓ ≥ 0, for losses that are not of classes.

    >>> deny(torch.tensor([0.5]).log().neg())  # of a probability of one half, the same
    tensor([0.6931])
    """
    return -torch.log(-torch.expm1(-losses.clamp_min(LEAST_LOSS)))


def deny_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """-log(1 - p) from logits: exact where the loss of a sample known by heart is 0 in single precision.

    >>> deny_classes(torch.tensor([[50.0, 0.0]]), torch.tensor([0]))
    tensor([50.])
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    others = logits.scatter(1, labels.long()[:, None], float("-inf"))
    return logits.logsumexp(1) - others.logsumexp(1)
