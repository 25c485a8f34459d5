"""What works are measured on: a task, parts of it, and two processes that are played."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from excise.planning.messages import Prices
from excise.planning.scaling import Estimate, Pair, estimate
from excise.planning.stopwatch import REPEATS, SHORT, Clock
from excise.processes.rehearsal import Rehearsal, Rehearsed
from excise.task.task import Task

FEW = 64  # samples of a work that is measured in part


@dataclass(frozen=True)
class Bench:
    """What works are measured on."""

    task: Task
    request: int
    """How many samples a request names."""
    budget: float
    """Seconds for each work, about."""
    clock: Clock
    seed: int = 0
    few: int = FEW
    """Samples of a work that is measured in part."""
    prices: Prices | None = None
    """Of messages; without them nothing is said of several processes."""

    def estimate(
        self,
        set_up: Callable[[Bench, int], Callable[[], object]],
        size: int,
        *,
        start: int,
        most: int | None = None,
        streams: bool = False,
        in_steps: bool = False,
    ) -> Estimate:
        """What a work of this size takes; it is set up on this bench, or on copies of it."""

        def alone(of_size: int) -> Callable[[], object]:
            return set_up(self, of_size)

        def rehearse(of_size: int) -> Pair:
            return self._rehearsed(lambda one: set_up(one, of_size))

        with quiet():
            return estimate(
                alone,
                size,
                start=start,
                budget=self.budget,
                clock=self.clock,
                most=most,
                streams=streams,
                rehearse=rehearse if self.prices else None,
                in_steps=in_steps,
            )

    def _rehearsed(self, set_up: Callable[[Bench], Callable[[], object]]) -> Pair:
        """What a work takes by two processes, each with a model of its own."""
        assert self.prices is not None
        play = Rehearsal(2, self.clock)

        def act(rank: int) -> Rehearsed:
            own = replace(self, task=self.task.with_model(copy.deepcopy(self.task.model)))
            work = set_up(own)
            found = [play.timed(rank, work)]
            while found[-1].seconds < SHORT and len(found) <= REPEATS:  # which is the same for both
                found.append(play.timed(rank, work))
            return min(found, key=lambda one: one.seconds)

        found = play.play(act)[0]
        return Pair(found.seconds, *self.prices.charge(found.sent))

    @property
    def count(self) -> int:
        """Training samples."""
        return len(self.task.train_set)

    def part(self, count: int) -> Task:
        """The task with so many of its samples, drawn at random; all of it where that is all."""
        return self.task if count >= self.count else part_of(self.task, self.order[:count])

    def fitting(self, size: int) -> int:
        """The size of a part, or a larger one where requests need that."""
        return max(size, 4 * self.request)

    @property
    def order(self) -> Tensor:
        """The samples in random order."""
        return torch.randperm(self.count, generator=torch.Generator().manual_seed(self.seed))


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings are for who does the work, not for who asks what it costs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def part_of(task: Task, ids: Tensor) -> Task:
    """The same objective on some samples, which are read as they are in the whole set."""
    data, plain = (None if one is None else some_of(one, ids) for one in (task.train_set, task.plain_set))
    other = replace(task, train_set=data, plain_set=plain, keys=None)
    for name in ("loss_module", "_sample_losses", "loss_scale", "_input_size"):
        vars(other)[name] = getattr(task, name)
    return other


def some_of(data: object, ids: Tensor) -> object:
    """Some samples of a set."""
    if isinstance(data, TensorDataset):
        return TensorDataset(*data[ids])
    return Subset(data, ids.tolist())  # type: ignore[arg-type]
