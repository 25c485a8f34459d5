"""What the figures of the CIFAR experiment say about each claim of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from excise.reproduce.framework.experiment import Claim, Measured, Verdict, judged
from excise.reproduce.parts.removals import supported_removals
from excise.reproduce.studies.cifar_models.measure import ACCURACY, LITERAL, NORM, OURS, SERIES

DROP = 0.05  # of accuracy: how much may be lost


@dataclass(frozen=True)
class Ranking:
    """How base accuracies and the removals that they support go together, over the networks."""

    bases: dict[str, float]
    supported: dict[str, str]
    """As in the paper's table, such as "12" or "> 20"."""
    correlation: float
    """Spearman's, of base accuracy with supported removals; NaN if those are all alike."""
    chance: float
    """Its p-value."""
    drop_correlation: float
    """Spearman's, of base accuracy with the accuracy lost over all removals."""
    drop_chance: float
    ended: int
    """How many of the networks lost more than the threshold."""


def ranking(measured: Measured, series: str) -> Ranking:
    """Of one method: supported removals are the mean curve's over the runs."""
    curves = {name: np.mean(found[series], axis=0) for name, found in measured[ACCURACY].items()}
    supported = {name: supported_removals(measured["removed"], list(c), drop=DROP) for name, c in curves.items()}
    bases = {name: float(curve[0]) for name, curve in curves.items()}
    counts = [one.removals + (0 if one.ended else 1) for one in supported.values()]  # one that never fell is above
    drops = [float(curve[0] - curve[-1]) for curve in curves.values()]
    by_count, by_drop = (_spearman(list(bases.values()), values) for values in (counts, drops))
    return Ranking(
        bases,
        {name: one.label for name, one in supported.items()},
        *by_count,
        *by_drop,
        ended=sum(one.ended for one in supported.values()),
    )


def _spearman(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The correlation and its p-value; NaN where one of them does not vary."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return math.nan, math.nan
    found = spearmanr(first, second)
    return float(found.statistic), float(found.pvalue)


def judge(measured: Measured) -> list[Claim]:
    """Each claim by a rule that its row states."""
    found = {series: ranking(measured, series) for series in SERIES}
    return [_scales(measured, found), _accurate_support_more(found), _noise(measured)]


def _scales(measured: Measured, found: dict[str, Ranking]) -> Claim:
    last = measured["removed"][-1]

    def listed(series: str) -> str:
        names = found[series].supported
        return ", ".join(f"{name} {label}" for name, label in names.items())

    count = len(found[LITERAL].bases)
    parameters = measured["parameters"].values()
    return Claim(
        '"Does the formulation scale?" removal works over many typical models of varying sizes, for the same '
        "hyperparameters",
        f"removals (of {last}) until accuracy falls by more than {100 * DROP:g} points: published step and noise: "
        f"{listed(LITERAL)}; ours: {listed(OURS)}",
        judged(found[LITERAL].ended == 0),
        f"Confirmed if all {count} networks, of {min(parameters):,} to {max(parameters):,} parameters, bear all "
        "removals by the published method.",
    )


def _accurate_support_more(found: dict[str, Ranking]) -> Claim:
    literal, ours = found[LITERAL], found[OURS]
    bases = ", ".join(f"{name} {base:.0%}" for name, base in literal.bases.items())
    varies = not math.isnan(literal.correlation)
    verdict: Verdict = "out of reach"
    if varies:
        verdict = judged(literal.correlation > 0 and literal.chance < 0.05)
    return Claim(
        '"Models that have higher base accuracies tend to support more removals before performance drops"',
        f"base accuracies: {bases}. Spearman's correlation with the removals supported: {_correlation(literal)}; ours "
        f"{_correlation(ours)}",
        verdict,
        "Confirmed if it is positive with p below 0.05 for the published method; out of reach if all networks support "
        "equally many. The two ResNets are the only ones that were trained on 50,000 images, for long, elsewhere.",
    )


def _correlation(found: Ranking) -> str:
    lost = f"{found.drop_correlation:.2f} (p = {found.drop_chance:.2f}) with the accuracy lost in all"
    if math.isnan(found.correlation):
        return f"not defined, as all support equally many; {lost}"
    return f"{found.correlation:.2f} (p = {found.chance:.2f}), {lost}"


def _noise(measured: Measured) -> Claim:
    firsts = {name: max(curve[0] for curve in found[LITERAL]) for name, found in measured[NORM].items()}
    longest = max(firsts, key=lambda name: firsts[name])
    largest = firsts[longest]
    return Claim(
        "with ε = 0.1 and δ = 0.01 each removal is (ε, δ)-forgetting",
        f"the noise takes it that gradients are at most 1 long; those of the samples removed first are, before any "
        f"step, up to {largest:.3g} long ({longest})",
        judged(largest <= 1),
        f"Confirmed if none is longer than 1. By the paper's formula the noise is {measured['sigma unscaled']:.2g} for "
        f"{measured['samples']:,} samples, which leaves no model; {measured['sigma']:.2g} was added to each removal "
        "(see below).",
    )
