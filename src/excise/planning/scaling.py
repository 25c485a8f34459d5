"""From small to large: a work is measured at its own size where that takes little, else at two sizes, along a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

from excise.planning.stopwatch import Clock, taken

LEAST_GROWTH, MOST_GROWTH = 2, 16  # of the second size over the first
Measure = Callable[[int], Callable[[], object]]
"""Sets a work of some size up, and gives the function that does it."""


@dataclass(frozen=True)
class Pair:
    """What a work takes by two processes."""

    seconds: float
    """That the slower of them works."""
    waiting: float = 0.0
    """Seconds for messages, however short they are."""
    sending: float = 0.0
    """Seconds for what is in them."""

    def plus(self, other: Pair, times: float = 1.0) -> Pair:
        """With so many times another."""
        return Pair(*(one + times * more for one, more in zip(astuple(self), astuple(other), strict=True)))


Rehearse = Callable[[int], Pair]
"""What a work of some size takes by two processes."""


@dataclass(frozen=True)
class Estimate:
    """What a work will take."""

    seconds: float
    memory: float
    measured_at: float
    """The share of its size that was measured: 1 for all of it."""
    pair: Pair | None = None
    """By two processes; None where that was not asked."""

    def plus(self, other: Estimate, times: float = 1.0) -> Estimate:
        """With so many times another after it."""
        pair = self.pair.plus(other.pair, times) if self.pair and other.pair else None
        memory = max(self.memory, other.memory) if times > 0 else self.memory
        return Estimate(self.seconds + times * other.seconds, memory, self.measured_at, pair)

    def beyond(self, other: Estimate) -> Estimate:
        """By how much it takes more than another, or nothing."""
        less = self.plus(other, -1.0)
        pair = less.pair and Pair(*(max(0.0, one) for one in astuple(less.pair)))
        return Estimate(max(0.0, less.seconds), self.memory, self.measured_at, pair)

    def on(self, workers: int) -> float:
        """Seconds by so many processes, which divide what two of them do.

        Others are waited for one after the other, and what is sent goes round in a ring.

        >>> Estimate(10.0, 0.0, 1.0, Pair(6.0)).on(4), Estimate(10.0, 0.0, 1.0, Pair(6.0, 0.1, 0.2)).on(4)
        (4.0, 4.6)
        """
        if workers == 1 or self.pair is None:
            return self.seconds
        pair, others = self.pair, workers - 1
        divided = min(max(0.0, 2 * (self.seconds - pair.seconds)), self.seconds)
        fixed = max(0.0, pair.seconds - divided / 2)
        return fixed + divided / workers + pair.waiting * others + pair.sending * 2 * others / workers


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
    rehearse: Rehearse | None = None,
    in_steps: bool = False,
) -> Estimate:
    """What a work of this size takes, in about ``budget`` seconds.

    Args:
        set_up: Makes a work of a size.
        size: The one that is asked about.
        start: The size that is measured first.
        budget: Seconds, of all that one process measures together.
        clock: Which seconds.
        most: The largest size that can be measured; None for that which is asked about.
        streams: Whether its memory is that of a batch, however many there are.
        rehearse: Measures the largest of these sizes by two processes too; None to ask about one process alone.
        in_steps: Whether there are as many more messages as the work is larger; else those of a part are those of all.
    """

    def pair_at(of_size: int) -> Pair | None:
        return None if rehearse is None else rehearse(of_size)

    def whole() -> Estimate:
        found = taken(set_up(size), clock)
        return Estimate(found.seconds, found.memory, 1.0, pair_at(size))

    largest = min(size, most or size)
    first = min(start, largest)
    began = time.perf_counter()
    before = taken(set_up(first), clock)
    spent = time.perf_counter() - began
    if first == size:
        return Estimate(before.seconds, before.memory, 1.0, pair_at(size))
    if largest == size and spent * size / first <= budget:
        return whole()
    second = int(first * min(MOST_GROWTH, max(LEAST_GROWTH, budget / max(spent, 1e-9) / 2)))
    second = min(max(second, first + 1), largest)
    if second == first:
        times = size / first
        one = pair_at(first)
        return Estimate(before.seconds * times, before.memory, 1 / times, one and Pair(0.0).plus(one, times))
    after = taken(set_up(second), clock)
    line = Line((first, second), (before.seconds, after.seconds))
    if largest == size and second < size and line.at(size) <= budget:
        return whole()
    memory = Line((first, second), (before.memory, after.memory)).at(second if streams else size)
    one = pair_at(second)
    pair = one and _extended(one, line.slope * (size - second), size / second if in_steps else 1.0)
    return Estimate(line.at(size), max(before.memory, memory), second / size, pair)


def _extended(pair: Pair, growth: float, messages: float) -> Pair:
    """What two processes take at a larger size: they divide what grows."""
    return Pair(pair.seconds + growth / 2, pair.waiting * messages, pair.sending * messages)
