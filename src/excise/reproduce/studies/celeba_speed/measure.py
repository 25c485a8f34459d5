"""Figure "speed": how long do FOCI (by CODEC) and L-FOCI (by L-CODEC) take for the blanket of a CelebA attribute?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KDTree

from excise.datasets.celeba import load_attributes
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.run import Run
from excise.statistics._neighbors import Floats, Ints
from excise.statistics.dependence import codec, lcodec, ranks
from excise.statistics.foci import foci, lfoci

Table = NDArray[np.int8]
Find = Callable[[Floats], Ints]
FOCI, LFOCI = "FOCI, CODEC", "L-FOCI, L-CODEC"
VANISHING, PREDICTORS, LITERAL = "vanishing noise", "noise on the predictors", "noise on all variables"


@dataclass(frozen=True)
class Settings:
    """Of this experiment; the paper names neither the rows nor the noise."""

    targets: int = 40
    rows: int = 202_599
    textbook_rows: int = 202_599
    most: int = 39
    noise: float = 0.01
    coefficient_rows: int = 5000
    draws: int = 3
    growth: tuple[int, ...] = (1000, 2000, 4000, 8000)


def measure(run: Run[Settings]) -> Measured:
    """Seconds and blankets of both searches, textbook and ours, one target after the other."""
    settings = run.settings
    values, names = load_attributes(run.data_dir / "celeba")
    shuffled = values[np.random.default_rng(run.seed).permutation(len(values))]
    textbook, ours, coefficients = [], [], []
    for target in range(settings.targets):
        seed, name = [run.seed, target], names[target]
        textbook.append(run.step(f"textbook, {name}", partial(_textbook, shuffled, target, settings, seed)))
        ours.append(run.step(f"ours, {name}", partial(_ours, shuffled, target, settings, seed)))
        given = ours[-1]["sets"][FOCI]
        coefficients.append(
            run.step(f"coefficients, {name}", partial(_coefficients, shuffled, target, given, settings, seed))
        )
    return {
        "attributes": names[: settings.targets],
        "all_attributes": names,
        "rows": {"textbook": min(settings.textbook_rows, len(values)), "ours": min(settings.rows, len(values))},
        "textbook": textbook,
        "ours": ours,
        "coefficients": coefficients,
        "growth": run.step("growth", partial(_growth, shuffled, settings, run.seed)),
    }


def _textbook(values: Table, target: int, settings: Settings, seed: list[int]) -> dict[str, Any]:
    """Both searches as they read in the papers; beside them, what chance alone changes in a blanket."""
    part = values[: settings.textbook_rows].astype(np.float64)
    X, y = np.delete(part, target, axis=1), part[:, target]
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = {"seconds": {}, "sets": {}, "evaluations": {}}
    noisy_y = y + rng.normal(0.0, settings.noise, y.shape)
    for name, outcome, find in (
        (FOCI, y, partial(nearest_of_listed, rng=rng)),
        (LFOCI, noisy_y, partial(nearest_after_noise, noise=settings.noise, rng=rng)),
    ):
        began = time.perf_counter()
        chosen, evaluations = plain_foci(X, outcome, find, most=settings.most)
        result["seconds"][name] = time.perf_counter() - began
        result["sets"][name] = _originals(chosen, target)
        result["evaluations"][name] = evaluations
    varied = [column for column in range(X.shape[1]) if np.ptp(X[:, column])]
    again = [foci(X[:, varied], y, max_features=settings.most, random_state=draw, n_jobs=1).indices for draw in (0, 1)]
    result["two_draws"] = [_originals([varied[column] for column in one], target) for one in again]
    return result


def nearest_of_listed(points: Floats, *, rng: np.random.Generator) -> Ints:
    """CODEC's neighbour as it reads: list all the equally near other rows of each row, then draw one."""
    tree = KDTree(points)
    distance = tree.query(points, k=2)[0][:, 1]
    neighbor = np.empty(len(points), dtype=np.int64)
    for low in range(0, len(points), 500):  # the lists of all rows at once would not fit in memory
        part = slice(low, low + 500)
        lists = tree.query_radius(points[part], distance[part] * (1 + 1e-9))
        for row, tied in enumerate(lists, start=low):
            drawn = tied[rng.integers(len(tied) - 1)]
            neighbor[row] = tied[-1] if drawn == row else drawn  # the row itself is in the list
    return neighbor


def nearest_after_noise(points: Floats, *, noise: float, rng: np.random.Generator) -> Ints:
    """L-CODEC's way round ties: noise below any gap first, and the one nearest row of a kd-tree."""
    noisy = points + rng.normal(0.0, noise, points.shape)
    found: Ints = KDTree(noisy).query(noisy, k=2)[1]
    return np.where(found[:, 0] == np.arange(len(points)), found[:, 1], found[:, 0])


def plain_foci(X: Floats, y: Floats, find: Find, *, most: int) -> tuple[list[int], int]:
    """Forward selection with T, every coefficient from scratch, and how many it took."""
    rank, below = ranks(y)
    known = float(np.sum(below.astype(np.float64) ** 2)) / len(y)
    chosen: list[int] = []
    evaluations = 0
    while len(chosen) < min(most, X.shape[1]):
        rest = [column for column in range(X.shape[1]) if column not in chosen]
        sums = [_mates(rank, find(X[:, [*chosen, column]])) for column in rest]
        evaluations += len(rest)
        best = int(np.argmax(sums))
        if sums[best] <= known:
            break
        chosen.append(rest[best])
        known = sums[best]
    return chosen, evaluations


def _mates(rank: Ints, near: Ints) -> float:
    return float(np.minimum(rank, rank[near]).sum())


def _ours(values: Table, target: int, settings: Settings, seed: list[int]) -> dict[str, Any]:
    """`foci` and `lfoci` on one core, with draws of their own: with the same they are one search."""
    part = values[: settings.rows]
    X, y = np.delete(part, target, axis=1), part[:, target]
    result: dict[str, Any] = {"seconds": {}, "sets": {}}
    lfoci(X[:400], np.arange(400), max_features=2, random_state=0, n_jobs=1)  # compiled code is loaded before
    for number, (name, search) in enumerate(((FOCI, foci), (LFOCI, lfoci))):
        began = time.perf_counter()
        draws = np.random.default_rng([*seed, number])
        found = search(X, y, max_features=settings.most, random_state=draws, n_jobs=1)
        result["seconds"][name] = time.perf_counter() - began
        result["sets"][name] = _originals(found.indices, target)
    return result


def _coefficients(
    values: Table, target: int, given: list[int], settings: Settings, seed: list[int]
) -> dict[str, list[float]]:
    """T(Y, blanket) by CODEC and by the forms of L-CODEC, over draws."""
    part = values[: settings.coefficient_rows].astype(np.float64)
    y, z = part[:, target], part[:, given or [target - 1]]
    found: dict[str, list[float]] = {"CODEC": [], VANISHING: [], PREDICTORS: [], LITERAL: []}
    rng = np.random.default_rng(seed)
    for _ in range(settings.draws):
        found["CODEC"].append(codec(y, z, random_state=rng))
        found[VANISHING].append(lcodec(y, z, random_state=rng))
        found[PREDICTORS].append(lcodec(y, z, noise=settings.noise, random_state=rng))
        found[LITERAL].append(lcodec(y, z, noise=settings.noise, perturb="all", random_state=rng))
    return found


def _growth(values: Table, settings: Settings, seed: int) -> dict[str, Any]:
    """Seconds of one textbook coefficient in four attributes, against the rows."""
    rng = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {FOCI: [], LFOCI: []}
    columns = [rng.choice(values.shape[1], 4, replace=False) for _ in range(5)]
    for rows in settings.growth:
        parts = [values[:rows, chosen].astype(np.float64) for chosen in columns]
        seconds[FOCI].append(_median_time(partial(nearest_of_listed, rng=rng), parts))
        seconds[LFOCI].append(_median_time(partial(nearest_after_noise, noise=settings.noise, rng=rng), parts))
    return {"rows": list(settings.growth), "seconds": seconds}


def _median_time(find: Find, parts: Sequence[Floats]) -> float:
    seconds = []
    for points in parts:
        began = time.perf_counter()
        find(points)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def _originals(columns: Any, target: int) -> list[int]:
    """Positions among all attributes, from those without the target."""
    return [int(column) + (column >= target) for column in columns]
