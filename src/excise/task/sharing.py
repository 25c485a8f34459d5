"""Passes over samples, shared out among the processes that work together: the one place where each takes its part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from excise import processes
from excise.task.task import Batch, Task

Positions = Sequence[int] | Tensor


def rows_over(
    task: Task,
    ids: Positions,
    work: Callable[[Batch], Sequence[Tensor]],
    size: int,
    place: str,
    *,
    dataset: Any = None,
) -> list[Tensor]:
    """Tensors with a row for each sample, in their order, which ``work`` makes batch by batch; whole on every process.

    Args:
        task: Where samples come from.
        ids: Positions in the training set, or in another; one or more.
        work: Gives tensors of as many rows as the batch has samples.
        size: Of a batch, at most.
        place: What this is, in a word, for errors.
        dataset: The other set.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3))
    >>> task = Task(torch.nn.Linear(1, 1), torch.nn.MSELoss(), data)
    >>> [rows.tolist() for rows in rows_over(task, [2, 0], lambda batch: [2 * batch[0][:, 0]], 1, "doubled")]
    [[6.0, 2.0]]
    """
    shared = processes.is_shared(len(ids))
    mine = processes.share_of(ids) if shared else ids
    size = max(1, size // processes.shards())
    found = [tuple(work(batch)) for batch in task.batches(mine, size, dataset)]
    rows = [torch.cat(parts) for parts in zip(*found, strict=True)]
    return processes.gathered_rows(rows, place) if shared else rows


def sum_over(
    task: Task, ids: Positions, work: Callable[[Batch], Sequence[Tensor]], size: int, place: str, *, into: list[Tensor]
) -> list[Tensor]:
    """Sums over the samples of what ``work`` makes of each batch, the same on every process.

    Args:
        task: Where samples come from.
        ids: Positions in the training set.
        work: Gives the sums over a batch.
        size: Of a batch, but for the last.
        place: What this is, in a word, for errors.
        into: Zeros of the sums' shapes.
    """
    mine, shared = _own(range(math.ceil(len(ids) / size)))
    batches = task.batches(ids[mine.start * size : mine.stop * size], size)
    return _added(map(work, batches), len(ids) > size, shared, place, into)


def sum_of_batches(
    numbers: range, work: Callable[[int], Sequence[Tensor]], place: str, *, into: list[Tensor]
) -> list[Tensor]:
    """The same of batches by their numbers.

    Processes share out whole batches, those of a single process, and several are added up in double precision: so the
    sums are the same to the last digits, however many processes there are.

    >>> sum_of_batches(range(3), lambda number: [torch.tensor([1.0 * number])], "numbers", into=[torch.zeros(1)])
    [tensor([3.])]
    """
    mine, shared = _own(numbers)
    return _added(map(work, mine), len(numbers) > 1, shared, place, into)


def _own(numbers: range) -> tuple[range, bool]:
    """Which batches are this process's, and whether others have some too."""
    shared = len(numbers) >= processes.count() > 1
    return processes.share_of(numbers) if shared else numbers, shared


def _added(
    found: Iterable[Sequence[Tensor]], several: bool, shared: bool, place: str, into: list[Tensor]
) -> list[Tensor]:
    """Sums of what is found of each batch, here and in other processes."""
    sums = [zero.double() if several and zero.is_floating_point() else zero for zero in into]
    for ones in found:
        for sum_, one in zip(sums, ones, strict=True):
            sum_ += one
    sums = processes.total(sums, place) if shared else sums
    return [sum_.to(zero.dtype) for sum_, zero in zip(sums, into, strict=True)]
