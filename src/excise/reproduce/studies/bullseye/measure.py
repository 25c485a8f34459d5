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

from excise.dependence import codec_test, lcodec
from excise.neighbors import Floats
from excise.reproduce.blanket_tests import cmi_of, codec_of, local_shuffles, search_blanket, tree_cmi
from excise.reproduce.experiment import Claim, Experiment, Measured, judged
from excise.reproduce.feature_maps import learn_maps
from excise.reproduce.plots import tidy
from excise.reproduce.run import Run
from excise.selection import lfoci

RAW, MAPS = "raw data", "feature maps"
CMI, LCODEC, OURS, LFOCI = "CMI + CIT", "L-CODEC + CIT", "codec_test (ours)", "L-CODEC + L-FOCI"
BLANKET, OTHERS = (2, 3, 4, 5), (0, 1)
PUBLISHED = {
    RAW: {CMI: (0.75, 0.50, 5124.22), LCODEC: (1.00, 0.50, 402.10)},
    MAPS: {CMI: (0.875, 0.00, 516.19), LCODEC: (0.75, 0.00, 117.29), LFOCI: (0.833, 0.50, 0.464)},
}
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "linestyle": "",
    "color": "white",
    "markeredgecolor": "black",
    "markersize": 5,
    "zorder": 3,
}
LOOKS = {CMI: "#8c8c8c", LCODEC: "#d1495b", OURS: "#0b6e4f", LFOCI: "#1f77b4"}


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


def draw(measured: Measured, figure: Any) -> None:
    """The table as bars: both rates and the seconds, on both kinds of data, with the paper's figures as diamonds."""
    grid = figure.subplots(len(measured["found"]), 3, squeeze=False)
    for row, (level, found) in zip(grid, measured["found"].items(), strict=True):
        for position, (axes, key) in enumerate(zip(row, ("tpr", "fpr", "seconds"), strict=True)):
            tidy(axes, x="", y=("TPR", "FPR", "seconds")[position], title=f"tests at level {level}")
            if key == "seconds":
                axes.set_yscale("log")
            else:
                axes.set_ylim(-0.03, 1.05)
            for group, kind in enumerate((RAW, MAPS)):
                for place, name in enumerate(LOOKS):
                    across = group + 0.2 * (place - 1.5)
                    if name in found[kind]:
                        _bar(axes, across, [one[key] for one in found[kind][name]], name, labelled=group == 1)
                    if name in PUBLISHED[kind]:
                        axes.plot(across, PUBLISHED[kind][name][position], **DIAMOND)
            axes.set_xticks(range(2), (RAW, MAPS))
    grid[0, 0].plot([], [], label="the paper", **DIAMOND)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=8
    )


def _bar(axes: Any, across: float, values: Sequence[float], name: str, *, labelled: bool) -> None:
    """The mean, and one standard deviation about it as far as values go."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    axes.bar(across, mean, width=0.18, color=LOOKS[name], label=name if labelled else "")
    reach = [[mean - max(mean - spread, min(values))], [min(mean + spread, max(values)) - mean]]
    axes.errorbar(across, mean, yerr=reach, color="0.2", linewidth=1, capsize=2)


def judge(measured: Measured) -> list[Claim]:
    """By TPR - FPR, its standard errors over the runs, and mean seconds; the rules stand in the claims.

    The paper names no level of its tests, so in claims about rates each method is taken at its better one.
    """
    return [
        _time_claim(measured, RAW),
        _raw_claim(measured),
        _time_claim(measured, MAPS),
        _maps_claim(measured),
        _spurious_claim(measured),
        _lfoci_time_claim(measured),
        _mapping_claim(measured),
    ]


def _time_claim(measured: Measured, kind: str) -> Claim:
    parts, ratios = [], []
    for level, found in measured["found"].items():
        cmi, codec = found[kind][CMI], found[kind][LCODEC]
        ratios += [slow["seconds"] / quick["seconds"] for slow, quick in zip(cmi, codec, strict=True)]
        each = (_mean(cmi, "seconds") / _tests(cmi)) / (_mean(codec, "seconds") / _tests(codec))
        parts.append(
            f"level {level}: {_mean(cmi, 'seconds'):.1f} s for {_tests(cmi):.0f} tests and "
            f"{_mean(codec, 'seconds'):.1f} s for {_tests(codec):.0f}, {each:.1f} times a test"
        )
    theirs = {name: PUBLISHED[kind][name][2] for name in (CMI, LCODEC)}
    last = list(measured["found"])[-1]
    return Claim(
        f"{kind}: L-CODEC instead of CMI shortens the search from {theirs[CMI]:,.0f} s to {theirs[LCODEC]:,.0f} s, "
        f"{theirs[CMI] / theirs[LCODEC]:.1f} times",
        f"{'; '.join(parts)} (confirmed if L-CODEC is faster in every run)",
        judged(min(ratios) > 1),
        "Both share among the permutations what does not depend on Y. Extrapolated to "
        f"{measured['full_samples']:,} samples, {Settings().permutations} permutations and each from scratch by "
        f"kd-trees, the tests of level {last} would take {_extrapolated(measured, last, kind, CMI):,.0f} s and "
        f"{_extrapolated(measured, last, kind, LCODEC):,.0f} s.",
    )


def _extrapolated(measured: Measured, level: str, kind: str, name: str) -> float:
    """Seconds of all tests of a run with the paper's permutations, if each coefficient took what one took."""
    tests = np.mean([one["tests"] for one in measured["found"][level][kind][name]], axis=0)
    each = np.array([one[name] for one in measured["from_scratch"] if one["kind"] == kind])
    return float(tests @ each) * (Settings().permutations + 1)


def _raw_claim(measured: Measured) -> Claim:
    text, gain, error = _compared(measured, (RAW, LCODEC), (RAW, CMI))
    large = [f"{one['tpr']:.2f} / {one['fpr']:.2f} at {level}" for level, one in measured["full_size"].items()]
    return Claim(
        "raw data: L-CODEC is a clear improvement in identification, TPR / FPR 1.00 / 0.50 against 0.75 / 0.50",
        f"{text} (confirmed if above two standard errors)",
        judged(gain > max(2 * error, 0)),
        "Perfect tests would score 1.00 / 0.50 in this search. L-CODEC on one draw of "
        f"{measured['full_samples']:,} samples: {', '.join(large)}. Ours: {_ours(measured, RAW)}.",
    )


MARGIN = 0.15  # of TPR - FPR, within which two methods are comparable


def _maps_claim(measured: Measured) -> Claim:
    text, gain, error = _compared(measured, (MAPS, LCODEC), (MAPS, CMI))
    return Claim(
        "feature maps: L-CODEC is comparable with CMI, 0.75 / 0.00 against 0.875 / 0.00",
        f"{text} (confirmed if no more than {MARGIN:g} lower)",
        "out of reach" if error > MARGIN else judged(gain >= -MARGIN),
        ("The runs differ by more than this, so that they are too few to tell. " if error > MARGIN else "")
        + f"Ours: {_ours(measured, MAPS)}.",
    )


def _spurious_claim(measured: Measured) -> Claim:
    chosen = _strict(measured)[MAPS][LFOCI]
    fair = _mean(chosen, "tpr") >= 0.7 and _mean(chosen, "fpr") >= 0.25
    return Claim(
        "feature maps: L-FOCI finds most of the blanket and an additional spurious feature, 0.833 / 0.50",
        f"{_rates(chosen)} (confirmed if TPR is at least 0.7 and FPR at least 0.25)",
        judged(fair),
        "L-FOCI adds features while T is above 0, without a test and without looking back.",
    )


def _lfoci_time_claim(measured: Measured) -> Claim:
    found = _strict(measured)[MAPS]
    ratio = _mean(found[CMI], "seconds") / _mean(found[LFOCI], "seconds")
    return Claim(
        "feature maps: L-FOCI is significantly faster, 0.464 s against 516 s by CMI and 117 s by L-CODEC + CIT",
        f"{_mean(found[LFOCI], 'seconds'):.3f} s, {ratio:,.0f} times faster than CMI (confirmed from 100 times)",
        judged(ratio >= 100),
    )


def _mapping_claim(measured: Measured) -> Claim:
    text, gain, error = _compared(measured, (MAPS, CMI), (RAW, CMI))
    return Claim(
        "CMI is better on feature maps than on raw data, 0.875 / 0.00 against 0.75 / 0.50",
        f"{text} (confirmed if above two standard errors)",
        judged(gain > max(2 * error, 0)),
        f"The maps' rank correlation with the radii is {np.mean(measured['map_quality']):.2f} on average, "
        f"{np.min(measured['map_quality']):.2f} at the least.",
    )


def _strict(measured: Measured) -> Any:
    """What was found at the first level."""
    return next(iter(measured["found"].values()))


def _compared(measured: Measured, one: tuple[str, str], other: tuple[str, str]) -> tuple[str, float, float]:
    """Two methods in words, and the difference between them, each at its better level, with its standard error."""
    parts, best = [], []
    for kind, name in (one, other):
        levels = {level: found[kind][name] for level, found in measured["found"].items()}
        better = max(levels, key=lambda level: _mean(levels[level], "tpr") - _mean(levels[level], "fpr"))
        rest = "".join(f", {_rates(runs)} at {level}" for level, runs in levels.items() if level != better)
        parts.append(f"{_rates(levels[better])} at level {better}{rest}")
        best.append(levels[better])
    gain, error = _difference(best[0], best[1])
    return f"{parts[0]}; against {parts[1]}. TPR - FPR differs by {gain:+.2f} ± {error:.2f}", gain, error


def _ours(measured: Measured, kind: str) -> str:
    return ", ".join(f"{_rates(found[kind][OURS])} at {level}" for level, found in measured["found"].items())


def _tests(found: Sequence[Any]) -> float:
    return float(np.mean([sum(one["tests"]) for one in found]))


def _difference(one: Sequence[Any], other: Sequence[Any]) -> tuple[float, float]:
    """Mean and standard error, over the runs, of the differences in TPR - FPR."""
    gains = [a["tpr"] - a["fpr"] - b["tpr"] + b["fpr"] for a, b in zip(one, other, strict=True)]
    error = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else np.inf
    return float(np.mean(gains)), float(error)


def _mean(found: Sequence[Any], key: str) -> float:
    return float(np.mean([one[key] for one in found]))


def _rates(found: Sequence[Any]) -> str:
    return f"{_mean(found, 'tpr'):.3f} / {_mean(found, 'fpr'):.2f}"


EXPERIMENT = Experiment(
    name="bullseye",
    title="Markov blankets in the 3-D bullseye data",
    where="Table 1",
    data="draws of the 3-D bullseye distribution of Yang et al. (UAI 2020)",
    published=Settings(),
    settings=Settings(samples=1500, permutations=40, runs=4, map_epochs=60),
    quick=Settings(samples=120, permutations=19, runs=2, map_epochs=2, full_samples=150),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
Six points in space have radii that are related along a graph, and uniform directions; the blanket of Y is four of
them. TPR is the share of the four that a method finds, FPR that of the other two. All methods get the same data,
standardised.

- *CIT* is the search of the cited work: a feature is struck off when some set of the others makes it independent of
  Y, small sets first, and those that depend on Y given the rest come back. A test compares the statistic with its
  values after Y was exchanged among five neighbours in the given variables. The paper names no level: 0.05 is the
  cited work's, 0.9 (strike off only what looks very independent) the default of the paper's own script. In the
  verdicts each method is taken at the level where TPR - FPR is larger.
- *CMI* is the nearest-neighbour estimator with k = 5; *L-CODEC* is T. In raw data a variable is three columns.
  Even with perfect tests it finds 1.00 / 0.50 on average: it never looks back, and X1 and X2 do depend on Y given
  X3, X5 and X6 as long as X4 is missing, so what comes in before X4 in the random order stays.
- *codec_test (ours)* is that search with a last look back (each feature once more, given all others), by this
  package's own test, which exchanges Y within pairs and threes of neighbours. With perfect tests it finds 1.00 / 0.00.
- *Feature maps* are learned as in the cited work: one small network per point, trained so that any subset of the
  numbers predicts Y (Gaussian likelihood) and that squared distances equal the divergence between predictions; Adam
  with a cosine schedule, on the samples of the run. Learning them is not part of the seconds, as in the paper.
- L-FOCI chooses columns, so it is not applied to raw data, where a variable is three of them.

The smaller sample is the same for all methods, so that times can be compared with each other but not with the paper's.
Bars are means over the runs, with one standard deviation; diamonds are the paper's figures.
""",
    size=(10.5, 6.6),
)
