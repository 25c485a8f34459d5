"""Workers of a Ray cluster: actors, each of which keeps its block of columns in its memory from step to step."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise._support.ray_cluster import processors, received, remote_options
from excise.statistics._block import Block, Loading, Outcome, ask, attempt, column, make
from excise.statistics._crew import lost
from excise.statistics._incremental import Step
from excise.statistics._neighbors import Floats

TRIES = 3
AT_ONCE = 2  # calls of an actor: it searches, and hears of marks meanwhile


@contextmanager
def ray_crew(backend: Any, n_jobs: int) -> Iterator[RayCrew | None]:
    """The workers of a cluster; None where there is but one."""
    count = processors(n_jobs)
    if count < 2:
        yield None
        return
    crew = RayCrew(count, remote_options(backend))
    try:
        yield crew
    finally:
        crew.close()


class RayCrew:
    """Actors, one for each block."""

    def __init__(self, count: int, options: dict[str, Any]) -> None:
        import ray

        self.count = count
        self._kind = ray.remote(**options, max_concurrency=AT_ONCE)(Holder)
        self._parts: Sequence[NDArray[Any]] = ()
        self._loading = b""
        self._actors: dict[int, Any] = {}
        self._step = 0

    def load(self, parts: Sequence[NDArray[Any]], loading: Loading) -> list[Floats]:
        """Give each worker a part of the columns; their first sums."""
        self._parts, self._loading = parts, pickle.dumps(loading)
        return self._run("first_sums", dict.fromkeys(range(len(parts)), ()))

    def ask(self, steps: Sequence[Step]) -> list[Floats]:
        """The sums of each part in a later step."""
        self._step += 1
        # as bytes, since arrays that Ray sends by itself can't be written to
        return self._run("ask", {i: (self._step, pickle.dumps(step)) for i, step in enumerate(steps)})

    def column(self, part: int, c: int) -> Floats:
        """A column of a part, as it is searched."""
        found: Floats = self._run("column", {part: (c,)})[0]
        return found

    def close(self) -> None:
        """End the workers."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()

    def _run(self, work: str, arguments: dict[int, tuple[Any, ...]]) -> list[Any]:
        """``work`` on blocks; one whose worker was lost is made again."""
        import ray

        done: dict[int, Outcome] = {}
        for tries in range(1, TRIES + 1):
            self._engage(arguments)
            waiting = {i: getattr(self._actors[i], work).remote(*arguments[i]) for i in arguments if i not in done}
            error: BaseException | None = None
            for i, reference in waiting.items():
                try:
                    done[i] = received(reference)
                except ray.exceptions.RayError as problem:  # errors of the work itself come back as outcomes
                    error = problem
                    ray.kill(self._actors.pop(i))
            if error is None:
                break
            if tries == TRIES:
                raise lost(error, tries) from error
        return [done[i].value() for i in arguments]

    def _engage(self, needed: dict[int, Any]) -> None:
        """Have an actor for each block, and tell all of them who the others are."""
        import ray

        missing = [i for i in needed if i not in self._actors]
        for i in missing:
            sent = ray.put(np.asarray(self._parts[i]))
            self._actors[i] = self._kind.remote(sent, self._loading)
        if missing:
            for i, actor in self._actors.items():
                actor.meet.remote([other for j, other in self._actors.items() if j != i])


class Holder:
    """In a worker: a block, and the mark of the step that it is in, which it shares with the others."""

    def __init__(self, part: NDArray[Any], loading: bytes) -> None:
        self._made: Outcome = attempt(0, make, (part, pickle.loads(loading)))[1]
        self._others: list[Any] = []
        self._heard: dict[int, float] = {}
        self._mark = np.zeros(1)
        self._step = 0

    def meet(self, others: list[Any]) -> None:
        """Know whom to tell."""
        self._others = others

    def hear(self, step: int, mark: float) -> None:
        """Raise the mark of a step, whose scan looks at it again and again."""
        self._heard = {step: max(mark, self._heard.get(step, mark))}
        if step == self._step:
            self._mark[0] = max(self._mark[0], mark)

    def first_sums(self) -> Outcome:
        """The sums of each column by itself."""
        return self._made if self._made.error is not None else Outcome(self._made.result[1])

    def ask(self, number: int, sent: bytes) -> Outcome:
        """The sums of its columns in a later step."""
        step: Step = pickle.loads(sent)
        self._mark = np.array(step.mark)
        self._step = number
        self.hear(number, self._heard.get(number, 0.0))  # what came before
        told = float(step.mark[0])

        def tell(_: float) -> None:
            nonlocal told
            if self._mark[0] > max(told, self._heard.get(number, 0.0)):
                told = float(self._mark[0])
                for other in self._others:
                    other.hear.remote(number, told)

        return attempt(0, ask, (self._block, replace(step, mark=self._mark), tell))[1]

    def column(self, c: int) -> Outcome:
        """A column as it is searched."""
        return attempt(0, column, (self._block, c))[1]

    @property
    def _block(self) -> Block:
        block: Block = self._made.result[0]
        return block
