"""What all methods have in common: how they are called, and what they begin with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from excise.errors import InputError
from excise.inputs import whole
from excise.retraining import kept, require_same_architecture
from excise.task import Batch, Ids, Task, positions


class Baseline(Protocol):
    """A method of unlearning: from a trained model and what to forget, a new model in eval mode."""

    def __call__(self, task: Task, model: nn.Module, forget: Ids, *args: Any, **options: Any) -> nn.Module:
        """The model without the samples at these positions in ``task.train_set``; the given one is left as it was.

        All take ``seed``, a keyword like the options of their own (``*args`` is there for the type checker alone).
        """
        ...


@dataclass(frozen=True)
class Start:
    """A copy of the model to work on, what it is to forget and what it is to retain."""

    task: Task
    """The task, with the copy as its model."""
    forget: Tensor
    retain: Tensor
    seed: int

    @property
    def model(self) -> nn.Module:
        """The copy, in eval mode at first."""
        return self.task.model

    def training_batch(self, ids: Tensor) -> Batch:
        """The samples as a batch, with the copy in training mode for it.

        Of a single sample batch normalisation knows no variance: for it the mode is that of use.
        """
        self.model.train(len(ids) > 1)
        return self.task.batch(ids)

    def some_of(self, ids: Tensor, count: int | None, name: str) -> Tensor:
        """So many of the samples at random; None for all of them."""
        if count is None:
            return ids
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(self.seed))
        return ids[order[: whole(count, name)]]


def begin(task: Task, model: nn.Module, forget: Ids, seed: int) -> Start:
    """The checked start of a method.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1), nn.MSELoss(reduction="none"), data)
    >>> begin(task, task.model, [1], seed=0).retain.tolist()
    [0, 2]
    """
    whole(seed, "seed", 0)
    require_same_architecture(task.model, model, "model")
    task = replace(task, model=copy.deepcopy(model))
    task.model.eval()
    gone = positions(forget, len(task.train_set))
    if len(gone) == len(task.train_set):
        raise InputError(f"forget has all {len(gone)} samples of train_set; leave at least one to retain.")
    return Start(task, gone, kept(task, gone), seed)
