"""From small to large: a work is measured at its own size where that takes little, else at two sizes, along a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from excise.planning.stopwatch import Clock, Taken, taken

LEAST_GROWTH, MOST_GROWTH = 2, 16  # of the second size over the first
Measure = Callable[[int], Callable[[], object]]
"""Sets a work of some size up, and gives the function that does it."""


@dataclass(frozen=True)
class Estimate:
    """What a work will take."""

    seconds: float
    memory: float
    measured_at: float
    """The share of its size that was measured: 1 for all of it."""
    shared: float = 0.0
    """The seconds that grow with its size, which several processes divide among them."""

    def plus(self, seconds: float = 0.0, memory: float = 0.0, shared: float = 0.0) -> Estimate:
        """With so much more."""
        more = self.seconds + seconds, max(self.memory, memory), self.measured_at, self.shared + shared
        return Estimate(*more)

    def on(self, workers: int) -> float:
        """Seconds by so many processes, without what they send each other.

        >>> Estimate(10.0, 0.0, 1.0, shared=8.0).on(4)
        4.0
        """
        return self.seconds - self.shared * (1 - 1 / workers)


@dataclass(frozen=True)
class Line:
    """Through two measurements; it never falls, since more work takes no less."""

    sizes: tuple[float, float]
    values: tuple[float, float]

    @property
    def slope(self) -> float:
        """Per unit of size."""
        (low, high), (first, second) = self.sizes, self.values
        return max(0.0, (second - first) / (high - low))

    def at(self, size: float) -> float:
        """The value at a size.

        >>> Line((1, 2), (5.0, 7.0)).at(10), Line((1, 2), (5.0, 4.0)).at(10)
        (23.0, 4.0)
        """
        return self.values[1] + self.slope * (size - self.sizes[1])


def estimate(
    set_up: Measure,
    size: int,
    *,
    start: int,
    budget: float,
    clock: Clock = time.perf_counter,
    most: int | None = None,
    streams: bool = False,
) -> Estimate:
    """What a work of this size takes, in about ``budget`` seconds.

    Args:
        set_up: Makes a work of a size.
        size: The one that is asked about.
        start: The size that is measured first.
        budget: Seconds, of all that is measured together.
        clock: Which seconds.
        most: The largest size that can be measured; None for that which is asked about.
        streams: Whether its memory is that of a batch, however many there are.
    """
    largest = min(size, most or size)
    first = min(start, largest)
    began = time.perf_counter()
    before = taken(set_up(first), clock)
    spent = time.perf_counter() - began
    if first == size:
        return Estimate(before.seconds, before.memory, 1.0)
    if largest == size and spent * size / first <= budget:
        return _whole(set_up, size, clock, first, before)
    second = int(first * min(MOST_GROWTH, max(LEAST_GROWTH, budget / max(spent, 1e-9) / 2)))
    second = min(max(second, first + 1), largest)
    if second == first:
        seconds = before.seconds * size / first
        return Estimate(seconds, before.memory, first / size, seconds)
    after = taken(set_up(second), clock)
    line = Line((first, second), (before.seconds, after.seconds))
    if largest == size and second < size and line.at(size) <= budget:
        return _whole(set_up, size, clock, first, before)
    memory = Line((first, second), (before.memory, after.memory)).at(second if streams else size)
    return Estimate(line.at(size), max(before.memory, memory), second / size, line.slope * size)


def _whole(set_up: Measure, size: int, clock: Clock, first: int, before: Taken) -> Estimate:
    """Measured at its size; what was measured at a smaller one tells what of it grows."""
    found = taken(set_up(size), clock)
    growing = Line((first, size), (before.seconds, found.seconds)).slope * size
    return Estimate(found.seconds, found.memory, 1.0, min(growing, found.seconds))
