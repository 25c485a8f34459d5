"""What all methods begin with: a copy of the model, and the samples that it is to forget and to retain."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise._support.checks import whole
from excise.errors import InputError
from excise.task.ids import Ids, all_but, positions
from excise.task.task import Batch, Task
from excise.training.retraining import require_same_architecture


@dataclass(frozen=True)
class Start:
    """A copy of the model to work on, what it is to forget and what it is to retain."""

    task: Task
    """The task, with the copy as its model."""
    forget: Tensor
    retain: Tensor
    seed: int
    forgotten: Tensor
    """Samples of earlier requests: no method may look at them."""

    @property
    def model(self) -> nn.Module:
        """The copy, in eval mode at first."""
        return self.task.model

    @property
    def present(self) -> Tensor:
        """All samples that the model was asked to know until now: those to forget and those to retain."""
        return all_but(self.forgotten, len(self.task.train_set))

    def training_batch(self, ids: Tensor) -> Batch:
        """The samples as a batch, with the copy in training mode for it.

        A single sample has no variance that batch normalisation could divide by, so the copy stays in eval mode for it.
        """
        self.model.train(len(ids) > 1)
        return self.task.batch(ids)

    def some_of(self, ids: Tensor, count: int | None, name: str) -> Tensor:
        """So many of the samples at random; None for all of them."""
        if count is None:
            return ids
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(self.seed))
        return ids[order[: whole(count, name)]]


def begin(task: Task, model: nn.Module, forget: Ids, seed: int, *, forgotten: Ids = ()) -> Start:
    """The checked start of a method; ``forgotten`` are the samples of earlier requests.

    >>> data = torch.utils.data.TensorDataset(torch.ones(4, 1), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> task = Task(nn.Linear(1, 1), nn.MSELoss(reduction="none"), data)
    >>> begin(task, task.model, [1], seed=0).retain.tolist()
    [0, 2, 3]
    >>> begin(task, task.model, [1], seed=0, forgotten=[3]).retain.tolist()
    [0, 2]
    """
    whole(seed, "seed", 0)
    require_same_architecture(task.model, model, "model")
    task = task.with_model(copy.deepcopy(model))
    task.model.eval()
    count = len(task.train_set)
    now = positions(forget, count)
    before = positions(forgotten, count) if len(forgotten) else torch.empty(0, dtype=torch.long)
    again = now[torch.isin(now, before)]
    if len(again):
        raise InputError(f"forget has {int(again[0])}, which is among forgotten already; leave it out.")
    retain = all_but(torch.cat([now, before]), count)
    if not len(retain):
        which = f"forget has all {count} samples" if not len(before) else f"forget has all {len(now)} samples left"
        raise InputError(f"{which} of train_set; leave at least one to retain.")
    return Start(task, now, retain, seed, before)
