"""The mark of a step, which workers of a Dask cluster hear of from each other while they scan.

A worker that finds a better column logs an event, its client hears of it, and tells all workers. Nobody waits for that:
a mark that comes too late costs time, and nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from excise.statistics._incremental import Advance
from excise.statistics._neighbors import Floats

Channel = tuple[str, int]
"""The topic of a search, and the number of the step."""

_SCANNED: dict[Channel, list[Floats]] = {}
"""In a worker: the marks of the steps that its threads are in."""


class Exchange:
    """In the client: passes on what the workers find."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._topic, self._step, self._highest = f"excise-{uuid.uuid4().hex}", 0, 0.0

    @contextmanager
    def step(self) -> Iterator[Channel]:
        """Listen to the workers in a step."""
        self._step, self._highest = self._step + 1, 0.0
        self._client.subscribe_topic(self._topic, self._pass_on)
        try:
            yield self._topic, self._step
        finally:
            self._client.unsubscribe_topic(self._topic)

    def _pass_on(self, event: tuple[float, tuple[int, float]]) -> None:
        """Called in the client's event loop, which must not wait for workers here."""
        _, (step, mark) = event
        if step == self._step and mark > self._highest:
            self._highest = mark
            self._client.loop.add_callback(self._tell, step, mark)

    async def _tell(self, step: int, mark: float) -> None:
        with suppress(Exception):  # a worker or the scheduler is gone, which those notice who wait for them
            await self._client.run(hear, (self._topic, step), mark, on_error="ignore")


def hear(channel: Channel, mark: float) -> None:
    """In a worker: raise the mark of a step, whose scans look at it again and again."""
    for own in _SCANNED.get(channel, ()):
        own[0] = max(own[0], mark)


@contextmanager
def sharing(channel: Channel, mark: Floats) -> Iterator[tuple[Floats, Advance]]:
    """In a worker: a mark that rises with those of others, and what to call now and then to tell of it."""
    from distributed import get_worker

    worker, (topic, step) = get_worker(), channel
    own = np.array(mark)
    told = float(own[0])

    def tell(_: float) -> None:
        nonlocal told
        if own[0] > told:
            told = float(own[0])
            worker.log_event(topic, (step, told))

    marks = _SCANNED.setdefault(channel, [])
    marks.append(own)
    try:
        yield own, tell
    finally:
        marks[:] = [one for one in marks if one is not own]
        if not marks:
            _SCANNED.pop(channel, None)
