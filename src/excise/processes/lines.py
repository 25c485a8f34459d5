"""The lines between processes: four ways to send something, each of which all processes take part in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Lines(Protocol):
    """How processes reach each other; who can't be reached is a ``RuntimeError``."""

    def words(self, own: Tensor) -> list[Tensor]:
        """A short tensor of each process."""

    def add(self, flat: Tensor) -> None:
        """Set a tensor to the sum of those of all processes, in place."""

    def spread(self, flat: Tensor, source: int) -> None:
        """Set a tensor to that of one process, in place."""

    def objects(self, own: Any) -> list[Any]:
        """Something small of each process, of any kind."""

    def meet(self, call: str) -> list[str]:
        """The call that each process has come to."""


@dataclass(frozen=True, eq=False)
class GroupLines:
    """Lines of our own beside those of the user's group, which a model that is sharded uses at any time."""

    world: Any
    """The user's group, for tensors on GPUs."""
    door: Any
    """By which all come in; nobody waits here for long."""
    inside: Any
    """By which they talk inside, from CPU to CPU."""
    size: int

    def words(self, own: Tensor) -> list[Tensor]:
        """By one gathering."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.inside)
        return found

    def add(self, flat: Tensor) -> None:
        """By one reduction."""
        dist.all_reduce(flat, group=self._for(flat))

    def spread(self, flat: Tensor, source: int) -> None:
        """As bytes, which every line can send."""
        dist.broadcast(flat.reshape(-1).view(torch.uint8), source, group=self._for(flat))

    def objects(self, own: Any) -> list[Any]:
        """Pickled."""
        return self._objects(own, self.inside)

    def meet(self, call: str) -> list[str]:
        """At the door."""
        return self._objects(call, self.door)

    def _objects(self, own: Any, line: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own, group=line)
        return found

    def _for(self, tensor: Tensor) -> Any:
        """The line for tensors that are where this one is."""
        return self.inside if tensor.device.type == "cpu" else self.world
