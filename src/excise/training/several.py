"""Several retrainings: one after the other, or at once on the workers that joblib was told of, with the same models.

Each has a seed of its own, and what it depends on decides the name of its file, so that it does not matter who makes
it, in which order, or in how many runs. Where workers see the folder of kept models, they put theirs there; else the
weights are sent back.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from torch import Tensor

from excise._support import workers
from excise._support.checks import whole
from excise.task.ids import Ids, positions
from excise.task.task import Task
from excise.task.weights import portable_state, with_weights
from excise.training.loop import Fitted
from excise.training.model_cache import KeptModel, keep, read_model
from excise.training.retraining import SEEDS, Retrained, file_of, made_in, retrain, trained_on

TASK = "the task"


@dataclass(frozen=True)
class Wanted:
    """A retraining that is asked for."""

    gone: Tensor
    seed: int
    file: Path | None


@dataclass(frozen=True)
class Made:
    """What a worker says of its retraining."""

    weights: bytes | None
    """As safetensors; None where they are in the file."""
    seconds: float
    threads: int | None


@dataclass(frozen=True)
class Shared:
    """What all pieces need."""

    task: Task
    sign: Path | None
    """A file in the folder of kept models, by which workers see that it is theirs too."""


def retrainings(
    task: Task, forget: Ids, count: int, *, seed: int, cache: str | Path | None = None, progress: bool = False
) -> Iterator[Retrained]:
    """So many retrainings, each with a seed of its own.

    The seeds follow from ``seed`` alone: whoever asks for the same samples with the same seed finds the same models in
    the cache, be it an audit or a comparison, and whoever asks for more of them finds the first ones there.
    """
    seeds = _seeds(seed, count)
    if not workers.asked_for():
        for one in seeds:
            yield retrain(task, forget, seed=one, cache=cache, progress=progress)
        return
    wanted = [_wanted(task, forget, one, cache) for one in seeds]
    found: dict[int, Retrained] = {}
    given = 0
    for place, made in _each(task, wanted, cache):
        found[place] = made
        while given in found:  # in the order of their seeds
            yield found.pop(given)
            given += 1


def retraining(
    task: Task, forget: Ids, number: int, *, seed: int, cache: str | Path | None = None, progress: bool = False
) -> Retrained:
    """One of the retrainings that follow from a seed."""
    return retrain(task, forget, seed=_seeds(seed, number + 1)[number], cache=cache, progress=progress)


def retrain_ahead(task: Task, asked: Sequence[tuple[Ids, int, int]], *, cache: str | Path | None) -> None:
    """Where there are workers, have them make what later calls of ``retrainings`` will find in the cache.

    Args:
        task: What is trained.
        asked: Of each such call the samples, how many retrainings, and the seed.
        cache: Where models are kept; without it nothing is done.
    """
    if cache is None or not workers.asked_for():
        return
    wanted = [_wanted(task, forget, one, cache) for forget, count, seed in asked for one in _seeds(seed, count)]
    if any(one.file is None for one in wanted):  # data that can't be recognised
        return
    for _ in _each(task, [one for one in wanted if one.file is not None and not one.file.exists()], cache):
        pass


def _seeds(seed: int, count: int) -> list[int]:
    whole(seed, "seed", 0)
    return [SEEDS * (seed + 1) + number for number in range(whole(count, "count"))]


def _wanted(task: Task, forget: Ids, seed: int, cache: str | Path | None) -> Wanted:
    gone = positions(forget, len(task.train_set))
    file = file_of(task, gone, seed, cache)
    return Wanted(gone, seed, None if file is None else file.absolute())


def _each(task: Task, wanted: Sequence[Wanted], cache: str | Path | None) -> Iterator[tuple[int, Retrained]]:
    """The models as they come, by their places; those that are kept first, and the others from workers."""
    missing = []
    for place, one in enumerate(wanted):
        kept = None if one.file is None else read_model(one.file, task.model)
        if kept is None:
            missing.append(place)
        else:
            yield place, _as_retrained(kept)
    with sign_in(cache) as sign:
        for done in workers.each(_make, Shared(task, sign), [wanted[place] for place in missing], TASK):
            yield missing[done.place], _received(task, wanted[missing[done.place]], done.found)


def _make(shared: Shared, one: Wanted) -> Made:
    """Train a model, in a worker."""
    file = one.file if is_seen(shared.sign) else None
    made = made_in(file, shared.task, one.gone, one.seed)
    there = file is not None and file.exists()
    weights = None if there else safetensors.torch.save(portable_state(made.fitted.model))
    return Made(weights, made.seconds, made.threads)


def _received(task: Task, one: Wanted, made: Made) -> Retrained:
    """A worker's model."""
    if made.weights is None:
        kept = None if one.file is None else read_model(one.file, task.model)
        # a file that has not arrived, or was taken away since, is made here
        return _as_retrained(kept or made_in(one.file, task, one.gone, one.seed), now=True)
    model = with_weights(task.model, safetensors.torch.load(made.weights)).eval()
    kept = KeptModel(Fitted(model, (), 0.0), made.seconds, from_file=False, threads=made.threads)
    if one.file is not None:
        keep(one.file, kept, task.model, trained_on=trained_on(task, one.gone))
    return _as_retrained(kept)


def _as_retrained(kept: KeptModel, *, now: bool = False) -> Retrained:
    return Retrained(kept.fitted.model, kept.seconds, kept.from_file and not now, kept.threads)


@contextlib.contextmanager
def sign_in(cache: str | Path | None) -> Iterator[Path | None]:
    """A file in the folder, there while work is done; None where there is no folder, or it can't be written."""
    if cache is None:
        yield None
        return
    folder = Path(cache).expanduser().absolute()
    sign, is_new = folder / f".shared-{uuid.uuid4().hex}", not folder.exists()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        sign.touch()
    try:
        yield sign if is_seen(sign) else None
    finally:
        with contextlib.suppress(OSError):
            sign.unlink()
            if is_new:
                folder.rmdir()  # unless something is kept in it by now


def is_seen(sign: Path | None) -> bool:
    """Whether this process sees the folder that the sign is in."""
    try:
        return sign is not None and sign.exists()
    except OSError:
        return False
