"""Batch normalisation keeps means and variances of the training samples, which must forget samples too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from excise import processes
from excise._support import checks
from excise.errors import InputError
from excise.task.hooks import Call, capture
from excise.task.ids import Ids, positions
from excise.task.task import Task, evaluating
from excise.training.loop import batch_sizes


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether the model has a layer that remembers means and variances of its training samples.

    >>> has_batch_statistics(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    True
    >>> has_batch_statistics(nn.BatchNorm1d(3, track_running_stats=False))
    False
    """
    return bool(_layers(model))


def reestimate(task: Task, model: nn.Module, ids: Ids | None, *, batch_size: int = 256) -> None:
    """Set the running means and variances of all batch normalisation from these samples alone, in place.

    The samples pass through the model once, in batches. As in training, each layer normalises a batch by the batch's
    own statistics; what it remembers is the mean and the unbiased variance of all the values that reached it. For a
    first such layer they are those of one batch of all samples, whatever the batch size; for the layers after it they
    depend on the batches a little. Everything else is in eval mode (no dropout), nothing but the running means and
    variances changes, and after an error not even they have.

    A layer of which no variance is known, as it was not used or saw one value per channel (a single sample, without
    pixels), normalises by the statistics it has, and keeps them. Layers with frozen weights are not spared.

    The samples must look as in training: a model that was trained on augmented samples and gets statistics of plain
    ones loses accuracy.

    Args:
        task: Where the samples come from.
        model: The model to change, which need not be the task's.
        ids: Positions in ``train_set`` of the samples to take the statistics from; None for all.
        batch_size: Samples in a batch, 2 or more. A last batch of one joins the one before.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [2.0], [6.0], [99.0]]), torch.zeros(4))
    >>> task = Task(nn.BatchNorm1d(1), nn.MSELoss(reduction="none"), data)
    >>> reestimate(task, task.model, [0, 1, 2])
    >>> task.model.running_mean.item(), task.model.running_var.item()
    (3.0, 7.0)
    """
    chosen = positions(ids, len(task.train_set))
    batch_size = checks.whole(batch_size, "batch_size", 2)
    layers = _layers(model)
    if not layers:
        return
    task = task.with_model(model)  # batches go to the device of this model
    with torch.no_grad(), evaluating(model), _pooling(model, layers) as pools:
        batches = chosen.split(batch_sizes(len(chosen), batch_size))
        shared = len(batches) >= processes.count() > 1
        for batch in processes.share_of(batches) if shared else batches:
            task.outputs(model, task.batch(batch))
    for name, pool in pools.items():
        if shared:
            pools[name] = _of_all_processes(pool)
    for name, pool in pools.items():
        if not bool((pool.mean.isfinite() & pool.squares.isfinite()).all()):
            raise InputError(
                f"the values that reach the batch normalisation {name!r} are not all finite; check the samples of ids "
                "in train_set and the weights of model."
            )
    for name, pool in pools.items():
        if pool.count:
            layers[name].get_buffer("running_mean").copy_(pool.mean)
            layers[name].get_buffer("running_var").copy_(pool.squares / (pool.count - 1))


@dataclass
class _Pool:
    """Mean and sum of squared deviations, per channel, of the values seen so far."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def add(self, values: Tensor) -> None:
        """Pool with the values of a batch (n, channels, ...): total variance = within the batches + between them."""
        if values.element_size() < 4:  # means of half precision would be as coarse as the values
            values = values.float()
        variance, mean = torch.var_mean(values, dim=[0, *range(2, values.ndim)], correction=0)
        count = values.numel() // values.shape[1]
        self.join(_Pool(count, mean.cpu().double(), variance.cpu().double() * count))

    def join(self, other: _Pool) -> None:
        """Pool with the values of another pool."""
        if not other.count:
            return
        count, apart = self.count + other.count, other.mean - self.mean
        self.squares = self.squares + other.squares + apart**2 * (self.count * other.count / count)
        self.mean = self.mean + apart * (other.count / count)
        self.count = count


def _of_all_processes(pool: _Pool) -> _Pool:
    """What the processes have seen together."""
    found = _Pool()
    for count, mean, squares in processes.gathered((pool.count, pool.mean, pool.squares), "batch statistics"):
        found.join(_Pool(count, mean, squares))
    return found


def _layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers that have statistics to re-estimate, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.track_running_stats
        and module.running_mean is not None
        and module.running_var is not None
    }


@contextmanager
def _pooling(model: nn.Module, layers: Mapping[str, _BatchNorm]) -> Iterator[dict[str, _Pool]]:
    """Inside, the layers normalise by batch and their inputs are pooled; ``training`` is for the caller to restore."""
    pools = {name: _Pool() for name in layers}
    of_place = list(pools.values())

    def pool(call: Call) -> None:
        layer: Any = call.module
        # In train mode without tracking, a layer uses the batch's statistics and leaves all its buffers alone.
        by_batch = call.input.numel() > call.input.shape[1]
        layer.training, layer.track_running_stats = by_batch, not by_batch
        if by_batch:
            of_place[call.place].add(call.input)

    try:
        with capture(model, list(layers), pool, before=True):
            yield pools
    finally:
        for layer in layers.values():
            layer.track_running_stats = True
