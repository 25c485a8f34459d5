"""Who does what: each process takes one piece of a list of samples, or some of a list of pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from excise.processes.group import count, rank

FEWEST = 8  # samples of each process, below which a message takes longer than to do all of them
Some = TypeVar("Some", bound=Tensor | Sequence[Any])


def is_shared(samples: int) -> bool:
    """Whether so many samples are shared out, rather than looked at by every process."""
    return count() > 1 and samples >= FEWEST * count()


def share_of(ids: Some) -> Some:
    """Those of the samples that this process looks at: one piece, as long as the others' but for one.

    >>> share_of([3, 5, 9])
    [3, 5, 9]
    """
    low, high = piece(len(ids), rank(), count())
    some: Some = ids[low:high]  # type: ignore[assignment]
    return some


def piece(length: int, number: int, pieces: int) -> tuple[int, int]:
    """Where one of several equal pieces of a list begins and ends.

    >>> [piece(5, number, 2) for number in range(2)]
    [(0, 2), (2, 5)]
    """
    return length * number // pieces, length * (number + 1) // pieces


def assigned(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Which pieces of work each worker does, so that all take about as long: the longest first, to who has least.

    >>> assigned([1.0, 3.0, 1.0, 1.0], 2)
    [[1], [0, 2, 3]]
    """
    load = [0.0] * workers
    found: list[list[int]] = [[] for _ in range(workers)]
    for number in sorted(range(len(costs)), key=lambda one: (-costs[one], one)):
        who = min(range(workers), key=lambda one: (load[one], one))
        load[who] += costs[number]
        found[who].append(number)
    return [sorted(some) for some in found]


def part_of_mean(ids: Tensor, losses: Callable[[Tensor], Tensor]) -> Tensor:
    """What a process has of the mean loss of samples: the parts of all add up to it, and so do their gradients.

    >>> import torch
    >>> part_of_mean(torch.tensor([1, 2]), lambda ids: 1.0 * ids)
    tensor(1.5000)
    """
    if not is_shared(len(ids)):
        mean = losses(ids).mean()
        return mean if count() == 1 else mean / count()
    return losses(share_of(ids)).sum() / len(ids)
