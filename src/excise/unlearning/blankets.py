"""L-FOCI on what was observed of samples: the Markov blanket of the loss among the slices, by layer or of all."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise import processes
from excise.slices.activations import LayerActivations, Observation
from excise.slices.slices import Slices
from excise.statistics.foci import Method, lfoci, threads_of

MOST_PER_LAYER = 3  # columns that L-FOCI looks for in one layer of one sample


@dataclass(frozen=True)
class SelectedSlices:
    """The chosen slices, by number, and why."""

    numbers: tuple[int, ...]
    scores: dict[int, float] = field(default_factory=dict)
    """For each slice that L-FOCI ever picked, the sum of its T over the samples."""
    votes: dict[int, int] = field(default_factory=dict)
    """How many of the samples picked it."""


def blanket_per_layer(
    observations: Sequence[Observation], slices: Slices, *, share: float, seed: int, n_jobs: int | None = None
) -> SelectedSlices:
    """L-FOCI for each sample and layer; then the most-voted share of each layer's slices.

    Where it finds nothing at all, as for a sample whose loss hardly reacts, each layer's slice of largest T is taken.
    """
    searches = [
        (low, watched, observation.losses)
        for observation in observations
        for low, watched in zip(slices.offsets, observation.layers, strict=False)
    ]
    found = _search(searches, seed, n_jobs, keep_first=False)
    if not any(found):
        found = _search(searches, seed, n_jobs, keep_first=True)
    votes: Counter[int] = Counter()
    scores: dict[int, float] = defaultdict(float)
    for picks in found:
        for number, score in picks:
            votes[number] += 1
            scores[number] += score
    numbers: list[int] = []
    for low, layer in zip(slices.offsets, slices.layers, strict=False):
        picked = [number for number in votes if low <= number < low + layer.units]
        picked.sort(key=lambda number: (-votes[number], -scores[number], number))
        numbers += picked[: max(1, math.ceil(share * layer.units))]
    if not numbers:  # the loss does not change at all: nothing tells the slices apart
        numbers = list(range(slices.offsets[-2], slices.offsets[-1]))
    return SelectedSlices(tuple(sorted(numbers)), dict(scores), dict(votes))


def _search(
    searches: Sequence[tuple[int, LayerActivations, NDArray[np.float64]]],
    seed: int,
    n_jobs: int | None,
    *,
    keep_first: bool,
) -> list[list[tuple[int, float]]]:
    """For each layer and sample the slices that L-FOCI picks, by number, with their T."""
    threads = threads_of(n_jobs)
    inner = threads if len(searches) < threads else 1  # many searches side by side, or many threads in one

    def search(of: tuple[int, LayerActivations, NDArray[np.float64]]) -> list[tuple[int, float]]:
        low, watched, losses = of
        picks = _lfoci(watched.values, losses, seed, inner, max_features=MOST_PER_LAYER, keep_first=keep_first)
        return [(low + int(watched.units[column]), score) for column, score in picks]

    shared = len(searches) >= processes.count() > 1
    with ThreadPoolExecutor(max_workers=threads) as pool:
        found = list(pool.map(search, processes.share_of(searches) if shared else searches))
    return [picks for some in processes.gathered(found, "slices found") for picks in some] if shared else found


def blanket_of_all(
    observations: Sequence[Observation],
    slices: Slices,
    *,
    seed: int,
    method: Method = "full",
    keep_first: bool = True,
    n_jobs: int | None = None,
) -> SelectedSlices:
    """The paper's way: L-FOCI over all slices together, for each sample; the union."""
    votes: Counter[int] = Counter()
    scores: dict[int, float] = defaultdict(float)

    def search(observation: Observation) -> list[tuple[int, float]]:
        numbers = np.concatenate(
            [low + watched.units for low, watched in zip(slices.offsets, observation.layers, strict=False)]
        )
        values = np.concatenate([watched.values for watched in observation.layers], axis=1)
        picks = _lfoci(values, observation.losses, seed, n_jobs, method=method, keep_first=keep_first)
        return [(int(numbers[column]), score) for column, score in picks]

    for picks in processes.each(observations, search, "slices found"):
        for number, score in picks:
            votes[number] += 1
            scores[number] += score
    if not votes:
        return SelectedSlices(tuple(range(slices.offsets[-2], slices.offsets[-1])))
    return SelectedSlices(tuple(sorted(votes)), dict(scores), dict(votes))


def _lfoci(
    values: NDArray[np.float32],
    losses: NDArray[np.float64],
    seed: int,
    n_jobs: int | None,
    *,
    max_features: int | None = None,
    method: Method = "full",
    keep_first: bool = False,
) -> list[tuple[int, float]]:
    """Columns and their T; constant ones (dead units) and constant losses tell nothing."""
    if losses.max() == losses.min():
        return []
    alive = np.flatnonzero(values.max(axis=0) > values.min(axis=0))
    if len(alive) == 0:
        return []
    limit = None if max_features is None else min(max_features, len(alive))
    table = values if len(alive) == values.shape[1] else values[:, alive]
    found = lfoci(
        _before_rounding(table, seed),
        losses,
        max_features=limit,
        method=method,
        keep_first=keep_first,
        random_state=seed,
        n_jobs=n_jobs,
    )
    return [(int(alive[column]), float(score)) for column, score in zip(found.indices, found.scores, strict=True)]


def _before_rounding(values: NDArray[np.float32], seed: int) -> NDArray[Any]:
    """Values as they may have been before they were rounded to single precision.

    Of 1,000 copies a few would else be equal by chance, and a search among equal rows takes several times as long.
    Zeros and counts are what they are.
    """
    if np.array_equal(values, np.round(values)):
        return values
    lost = (np.random.default_rng(seed).random(values.shape) - 0.5) * np.spacing(np.abs(values))
    return values + np.where(values == 0, 0.0, lost)
