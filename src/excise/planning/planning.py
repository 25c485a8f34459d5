"""What works on a task will take, before any of them is done: told by a few batches of each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from excise._support.checks import positive, whole
from excise._support.progress import Stages
from excise.errors import ExciseError
from excise.planning import works
from excise.planning.bench import Bench
from excise.planning.messages import prices_here
from excise.planning.scaling import Estimate, Pair
from excise.planning.stopwatch import Clock
from excise.task.parameters import trainable
from excise.task.task import Task
from excise.unlearning.step import Step

BUDGET = 60.0  # seconds that a plan takes, about
WORKS = 9  # that share them


@dataclass(frozen=True)
class Work:
    """One work and what it will take."""

    name: str
    seconds: float | None
    memory: float | None
    """Bytes beyond model and data, at most."""
    kept: int | None = None
    """Bytes that stay from one request to the next."""
    measured_at: float = 1.0
    """The share of its size that was measured; what is below 1 is extrapolated."""
    pair: Pair | None = None
    """What it takes by two processes; None where that was not asked, or no work is divided."""
    why_not: str = ""
    """Why it can't be done on this task."""

    def on(self, workers: int) -> float | None:
        """Seconds by so many processes."""
        return None if self.seconds is None else Estimate(self.seconds, 0.0, 1.0, self.pair).on(workers)


@dataclass(frozen=True)
class Plan:
    """What to expect."""

    samples: int
    parameters: int
    request: int
    retrainings: int
    works: tuple[Work, ...]
    on_workers: dict[str, dict[int, float | None]]
    """Seconds of what several processes share out, by their number, with what they send each other."""

    def __getitem__(self, name: str) -> Work:
        return next(work for work in self.works if work.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the works."""
        return tuple(work.name for work in self.works)

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain values, for JSON."""
        return asdict(self)


def plan(
    task: Task,
    *,
    retrainings: int = 3,
    workers: int = 4,
    request: int = 1,
    seconds: float = BUDGET,
    clock: Clock = time.perf_counter,
    progress: bool = False,
) -> Plan:
    """Measure a few batches of every work on a task, and say what all of it will take.

    Nothing is written, and no model is changed. A work that is short is done once, as a whole; of a long one two small
    parts are measured, and what they say is extrapolated along a line. For several workers the same is done by two
    processes, which this one plays (see ``processes.rehearsal``); what messages cost is measured between two that are
    started for it.

    Args:
        task: The trained model and its data.
        retrainings: Models that an audit retrains.
        workers: Up to how many processes share what can be shared out, and retrainings (see ``docs/cluster.md``).
        request: How many samples a request names.
        seconds: How long measuring may take, about; for several workers up to three times as long.
        clock: What seconds are counted by.
        progress: Whether to show a bar.
    """
    whole(retrainings, "retrainings")
    whole(workers, "workers")
    whole(request, "request")
    positive(seconds, "seconds")
    prices = prices_here() if workers > 1 else None
    bench = Bench(task, request, seconds / WORKS, clock, prices=prices)
    return plan_on(bench, retrainings, workers, progress=progress)


def plan_on(
    bench: Bench, retrainings: int, workers: int, *, leave_out: Collection[str] = (), progress: bool = False
) -> Plan:
    """The same on a bench of one's own, for tasks of which even a few batches take long; some works may be left out."""
    with Stages(enabled=progress) as stages:
        found: dict[str, Work] = {}
        for name, work in _works(bench, retrainings, found).items():
            if name not in leave_out:
                stages.begin(name)
                found[name] = _tried(name, work)
    counts = _counts(workers)
    rest = f"audit of {retrainings} retrained"
    divided = {
        name: {count: work.on(count) for count in counts}
        for name, work in found.items()
        if name not in ("retraining", rest)
    }
    divided[f"audit with {retrainings} retrainings"] = {count: _audit(found, retrainings, count) for count in counts}
    size = sum(weight.numel() for weight in trainable(bench.task.model).values())
    return Plan(bench.count, size, bench.request, retrainings, tuple(found.values()), divided)


Estimated = Estimate | tuple[Estimate, int]


def _works(bench: Bench, retrainings: int, found: dict[str, Work]) -> dict[str, Callable[[], Estimated]]:
    """The works in their order; later ones look at what was found before."""

    def prepared(name: str) -> Estimate:
        known = found[name]
        if known.seconds is None:
            raise ValueError(known.why_not)
        return Estimate(known.seconds, known.memory or 0.0, known.measured_at)

    return {
        "prepare (default)": lambda: works.preparation(bench, "auto"),
        "request (default)": lambda: works.default_request(bench, prepared("prepare (default)")),
        "prepare (step)": lambda: works.preparation(bench, Step()),
        "request (step)": lambda: works.step_request(bench, prepared("prepare (step)")),
        "request (steps=3)": lambda: works.several_steps(bench),
        "request (drift)": lambda: works.drift_request(bench, prepared("prepare (step)")),
        "certificate": lambda: works.certificate(bench),
        "retraining": lambda: works.retraining(bench),
        f"audit of {retrainings} retrained": lambda: works.auditing(bench, retrainings),
    }


def _tried(name: str, work: Callable[[], Estimated]) -> Work:
    """What the work gives, or why it can't be done."""
    try:
        given = work()
    except (ExciseError, ValueError) as error:
        return Work(name, None, None, why_not=str(error).partition("; ")[0])
    found, kept = given if isinstance(given, tuple) else (given, None)
    return Work(name, found.seconds, found.memory, kept, found.measured_at, found.pair)


def _audit(found: dict[str, Work], retrainings: int, workers: int) -> float | None:
    """Seconds of an audit: whole retrainings, shared out, and the rest of it."""
    training, rest = found["retraining"].seconds, found[f"audit of {retrainings} retrained"].on(workers)
    if training is None or rest is None:
        return None
    return math.ceil(retrainings / workers) * training + rest


def _counts(workers: int) -> Sequence[int]:
    """1, 2, 4, … and the last.

    >>> _counts(6)
    [1, 2, 4, 6]
    """
    powers = [2**power for power in range(workers.bit_length()) if 2**power < workers]
    return [*powers, workers]
