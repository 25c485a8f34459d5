"""How quickly does a model learn forgotten samples again? One that only hides them needs few steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.checks import positive, require, whole
from excise.task.ids import Ids, positions
from excise.task.parameters import trained_parameters
from excise.task.predictions import predict
from excise.task.task import Task
from excise.training.loop import added_up, batch_sizes
from excise.training.sgd import SGD

ROUNDING = 1e-6  # of float32: the same model on the same samples, in batches of another size, differs by less


@dataclass(frozen=True)
class Relearning:
    """How the forgotten samples' mean loss fell while they were learned again."""

    steps: int | None
    """Steps until it was at the target; None if that was not reached."""
    losses: tuple[float, ...]
    """The mean loss before the first step and after every one."""
    target: float

    @property
    def reached(self) -> bool:
        """Whether the target was reached in the steps that were allowed."""
        return self.steps is not None


def relearn_steps(
    task: Task,
    model: nn.Module,
    forget: Ids,
    target_loss: float,
    *,
    lr: float = 0.01,
    most: int = 100,
    batch_size: int = 64,
    seed: int = 0,
) -> Relearning:
    """Count the steps of plain SGD on the forgotten samples alone until their mean loss is down at a target.

    The target is the original model's mean loss on them. To read the count, compare it with that of a model that never
    saw the samples: forgotten samples take it about as long. Training is of a copy, without momentum, weight decay and
    dropout, and with batch statistics as they are; the loss is taken over all the samples after every step.

    Args:
        task: The task; sample ids are positions in its ``train_set``.
        model: The model that is said to have forgotten; it is not changed.
        forget: The forgotten samples.
        target_loss: The mean loss to get back to.
        lr: Learning rate.
        most: Steps after which to give up.
        batch_size: Samples for one step; all of them, if there are fewer.
        seed: Decides which samples come in which step, if there are more.

    >>> data = torch.utils.data.TensorDataset(torch.ones(1, 1), torch.tensor([1.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> relearn_steps(task, task.model, [0], 0.01, lr=0.5)  # the error halves, so the loss is quartered
    Relearning(steps=3, losses=(0.5, 0.125, 0.03125, 0.0078125), target=0.01)
    """
    ids = positions(forget, len(task.train_set))
    right = isinstance(target_loss, Real) and math.isfinite(target_loss)
    require(right, "target_loss", target_loss, "a finite number")
    positive(lr, "lr")
    most, batch_size, seed = whole(most, "most", 0), whole(batch_size, "batch_size"), whole(seed, "seed", 0)
    model = copy.deepcopy(model).eval()
    optimizer = SGD(trained_parameters(model).values(), lr=lr)
    task = task.only(ids)  # so that no sample is read at every step
    batches = _batches(torch.arange(len(ids)), batch_size, seed)
    losses = [_mean_loss(task, model)]
    while not _is_reached(losses[-1], target_loss) and len(losses) <= most and math.isfinite(losses[-1]):
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = processes.part_of_mean(next(batches), lambda some: task.losses(model, task.batch(some)))
            loss.backward()
        added_up(optimizer, loss.detach())
        optimizer.step()
        losses.append(_mean_loss(task, model))
    reached = _is_reached(losses[-1], target_loss)
    return Relearning(len(losses) - 1 if reached else None, tuple(losses), float(target_loss))


def _batches(ids: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Batches without end, every sample once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    sizes = batch_sizes(len(ids), size)
    while True:
        yield from ids[torch.randperm(len(ids), generator=generator)].split(sizes)


def _mean_loss(task: Task, model: nn.Module) -> float:
    return float(predict(task, model).losses.mean())


def _is_reached(loss: float, target: float) -> bool:
    return loss <= target + ROUNDING * abs(target)
