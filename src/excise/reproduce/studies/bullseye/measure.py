"""Table 1: who finds the Markov blanket in the 3-D bullseye data, and how long does it take?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.blanket_tests import cmi_of, codec_of, local_shuffles, search_blanket, tree_cmi
from excise.reproduce.parts.feature_maps import learn_maps
from excise.statistics._neighbors import Floats
from excise.statistics.dependence import codec_test, lcodec
from excise.statistics.foci import lfoci

RAW, MAPS = "raw data", "feature maps"
CMI, LCODEC, OURS, LFOCI = "CMI + CIT", "L-CODEC + CIT", "codec_test (ours)", "L-CODEC + L-FOCI"
BLANKET, OTHERS = (2, 3, 4, 5), (0, 1)


@dataclass(frozen=True)
class Settings:
    """Of this experiment; runs, neighbours and maps are those of the two published codes, the paper names none."""

    samples: int = 5000
    permutations: int = 100
    runs: int = 10
    levels: tuple[float, ...] = (0.05, 0.9)
    noise: float = 0.075
    neighbours: int = 5
    shuffled_among: int = 5
    map_epochs: int = 400
    batch_size: int = 50
    learning_rate: float = 1e-3
    regulariser: float = 0.1
    full_samples: int = 5000


def measure(run: Run[Settings]) -> Measured:
    """True and false positive rates, seconds and numbers of tests, of every method at every level in every run."""
    settings = run.settings
    found: dict[str, Any] = {
        str(level): {kind: {name: [] for name in _methods(kind)} for kind in (RAW, MAPS)} for level in settings.levels
    }
    quality = []
    for number in range(settings.runs):
        seed = [run.seed, number]
        points, y, radii = bullseye(settings.samples, settings.noise, np.random.default_rng(seed))
        maps = run.tensors(f"run {number}, maps", partial(_mapped, points, y, settings, seed))["maps"].numpy()
        quality.append([abs(float(spearmanr(maps[:, k, 0], radii[:, k])[0])) for k in range(radii.shape[1])])
        for level, (kind, data) in product(settings.levels, ((RAW, points), (MAPS, maps))):
            for name in _methods(kind):
                step = partial(_find, name, _standardised(data), _standardised(y), level, settings, seed)
                found[str(level)][kind][name].append(run.step(f"run {number}, {kind}, {name}, level {level}", step))
    return {
        "found": found,
        "map_quality": quality,
        "from_scratch": [
            run.step(f"from scratch, {kind}, {size} given", partial(_from_scratch, kind, size, settings, run.seed))
            for kind, size in product((RAW, MAPS), range(len(BLANKET) + len(OTHERS)))
        ],
        "full_size": {
            str(level): run.step(f"L-CODEC, full size, level {level}", partial(_full_size, level, settings, run.seed))
            for level in settings.levels
        },
        "full_samples": settings.full_samples,
    }


def _methods(kind: str) -> tuple[str, ...]:
    return (CMI, LCODEC, OURS) if kind == RAW else (CMI, LCODEC, OURS, LFOCI)


def bullseye(samples: int, noise: float, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Six points in space a sample, the target, and the points' radii, which alone are related.

    X1 lies in one of two shells. R1 → R2, R1 → R3 → R4, R2 and R4 → R5, R3 and R5 → Y, R4 and Y → R6: a child is the
    mean of its parents plus uniform noise, so Y's blanket is X3, X4, X5, X6. Directions are uniform.
    """

    def child(*parents: Floats) -> Floats:
        return np.asarray(np.mean(parents, axis=0) + rng.uniform(-noise, noise, samples))

    outer = rng.random(samples) < 0.5
    r1 = rng.uniform(0.25, 0.5, samples) + 0.5 * outer
    r2, r3 = child(r1), child(r1)
    r4 = child(r3)
    r5 = child(r2, r4)
    y = child(r3, r5)
    radii = np.column_stack((r1, r2, r3, r4, r5, child(r4, y)))
    directions = rng.standard_normal((samples, 6, 3))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    return radii[:, :, None] * directions, y, radii


def _standardised(values: Floats) -> Floats:
    scaled: Floats = (values - values.mean(axis=0)) / values.std(axis=0)
    return scaled


def _mapped(points: Floats, y: Floats, settings: Settings, seed: list[int]) -> dict[str, Any]:
    maps = learn_maps(
        _standardised(points),
        _standardised(y),
        epochs=settings.map_epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        regulariser=settings.regulariser,
        rng=np.random.default_rng([*seed, 1]),
    )
    return {"maps": maps}


def _find(name: str, data: Floats, y: Floats, level: float, settings: Settings, seed: list[int]) -> dict[str, Any]:
    """One method's blanket: its rates, its seconds and its tests by the number of variables given."""
    _load_compiled(name, data[:60], y[:60], settings)
    rng = np.random.default_rng([*seed, 2])
    tests = [0] * data.shape[1]
    began = time.perf_counter()
    if name == LFOCI:
        blanket = sorted(lfoci(data[:, :, 0], y, random_state=rng, n_jobs=1).indices.tolist())
    else:

        def test(feature: int, given: Sequence[int]) -> float:
            tests[len(given)] += 1
            return _pvalue(name, data, y, feature, given, settings, rng)

        blanket = search_blanket(test, data.shape[1], level, rng, shrink=name == OURS)
    seconds = time.perf_counter() - began
    return {
        "blanket": blanket,
        "tpr": len(set(blanket) & set(BLANKET)) / len(BLANKET),
        "fpr": len(set(blanket) & set(OTHERS)) / len(OTHERS),
        "seconds": seconds,
        "tests": tests,
    }


def _load_compiled(name: str, data: Floats, y: Floats, settings: Settings) -> None:
    """Let what is compiled be compiled or loaded before time is taken."""
    rng = np.random.default_rng(0)
    if name == LFOCI:
        lfoci(data[:, :, 0], y, stop=False, max_features=3, random_state=rng, n_jobs=1)
    else:
        _pvalue(name, data, y, 0, [], settings, rng)
        _pvalue(name, data, y, 0, [1], settings, rng)


def _pvalue(
    name: str, data: Floats, y: Floats, feature: int, given: Sequence[int], settings: Settings, rng: np.random.Generator
) -> float:
    x, z = data[:, feature], data[:, list(given)].reshape(len(y), -1)
    if name == OURS:
        condition = z if len(given) else None
        return codec_test(y, x, condition, n_permutations=settings.permutations, random_state=rng).pvalue
    statistic = cmi_of(x, z, settings.neighbours) if name == CMI else codec_of(x, z)
    shuffles = local_shuffles(z, settings.permutations, settings.shuffled_among, rng)
    observed = statistic(y)
    return float(np.mean([statistic(y[shuffle]) >= observed for shuffle in shuffles]))


def _from_scratch(kind: str, size: int, settings: Settings, seed: int) -> dict[str, Any]:
    """Seconds of one coefficient by kd-trees, as the published codes compute it for every permutation anew."""
    points, y, radii = bullseye(settings.full_samples, settings.noise, np.random.default_rng([seed, 3]))
    data = _standardised(points if kind == RAW else radii[:, :, None])
    x, z = data[:, 2], data[:, 3 : 3 + min(size, 3)].reshape(len(y), -1)
    z = np.column_stack((z, data[:, : max(size - 3, 0)].reshape(len(y), -1)))
    began = time.perf_counter()
    tree_cmi(x, _standardised(y), z, settings.neighbours)
    middle = time.perf_counter()
    lcodec(y, x, z if size else None, random_state=0)
    return {"kind": kind, "given": size, CMI: middle - began, LCODEC: time.perf_counter() - middle}


def _full_size(level: float, settings: Settings, seed: int) -> dict[str, Any]:
    """L-CODEC + CIT on raw data of the paper's size, which it alone is quick enough for."""
    points, y, _ = bullseye(settings.full_samples, settings.noise, np.random.default_rng([seed, 4]))
    return _find(LCODEC, _standardised(points), _standardised(y), level, settings, [seed, 4])
