"""Tensors that are kept from one request to the next: in memory up to a limit, beyond it in temporary files."""

from __future__ import annotations

from torch import Tensor

from excise import processes
from excise._support.memory import available
from excise._support.spilling import TYPES, Spilled

SHARE_OF_FREE = 0.5  # of the memory that is free, that kept curvature may take where no limit is given


class Spill:
    """Where tensors are kept.

    >>> import torch
    >>> spill = Spill(100)
    >>> first, second = spill.keep(torch.ones(20)), spill.keep(torch.ones(20))
    >>> spill.in_memory, spill.in_files, bool(torch.equal(first, second))
    (80, 80, True)
    """

    def __init__(self, limit: int | None = None) -> None:
        own = min(SHARE_OF_FREE * available() / processes.count(), float("inf") if limit is None else limit)
        self.limit = min(processes.gathered(own, "memory for kept curvature"))  # all do what the smallest can
        self.in_memory = 0
        self._files: list[Spilled] = []

    @property
    def in_files(self) -> int:
        """Bytes."""
        return sum(file.bytes for file in self._files)

    def has_room(self, size: float) -> bool:
        """Whether so many bytes more may be in memory."""
        return self.in_memory + size <= self.limit

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or one with the same values in a file."""
        size = tensor.numel() * tensor.element_size()
        if self.has_room(size) or tensor.dtype not in TYPES:
            self.in_memory += size
            return tensor
        file = Spilled(tuple(tensor.shape), tensor.dtype)
        file.tensor.copy_(tensor)
        file.give_back()
        self._files.append(file)
        return file.tensor

    def give_back(self) -> None:
        """Let go of what is in memory of the files."""
        for file in self._files:
            file.give_back()
