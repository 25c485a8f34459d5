"""RoundRobin: which of a few samples are next, so that each is seen as often as any other."""

from __future__ import annotations

import torch
from torch import Tensor


class RoundRobin:
    """Random places 0 … count - 1, ``size`` at a time; every place has its turn before any has the next.

    >>> turns = RoundRobin(3, 2, seed=0)
    >>> sorted(torch.cat([turns.next() for _ in range(3)]).tolist())
    [0, 0, 1, 1, 2, 2]
    """

    def __init__(self, count: int, size: int, seed: int) -> None:
        self._count, self._size = count, min(size, count)
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.long)

    def next(self) -> Tensor:
        """The places whose turn it is."""
        if len(self._order) < self._size:
            left, order = self._order, torch.randperm(self._count, generator=self._generator)
            # those left over come first, and have their turn of the new round at its end
            self._order = torch.cat([left, order[~torch.isin(order, left)], left])
        now, self._order = self._order[: self._size], self._order[self._size :]
        return now
