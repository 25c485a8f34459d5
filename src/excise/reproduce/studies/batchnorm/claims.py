"""What the figures of the batchnorm experiment say about each claim of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.reproduce.framework.experiment import Claim, Measured, judged
from excise.reproduce.studies.batchnorm.measure import ACCURACY, EVEN, JOINED, KEPT, NORM, OURS, RETRAININGS, UNLEARNED

NEIGHBOURS = (1, 2, 8)  # removals after a dip: the last batch is full again, or nearly
HALF_A_POINT = 0.005
STANDING_OUT = 0.1  # share by which a norm must differ from its neighbours to be a spike


@dataclass(frozen=True)
class Depth:
    """By how much a score lies below what it is a few removals later, over runs and dips."""

    mean: float
    error: float
    """Its standard error."""

    @property
    def is_dip(self) -> bool:
        """Whether it is more than half a point, and more than chance explains: twice its standard error."""
        return self.mean > max(HALF_A_POINT, 2 * self.error)

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f} ± {100 * self.error:.2f} points"


def depth(values: Any) -> Depth:
    """Of single differences; those that could not be made are left out."""
    flat = np.asarray(values, dtype=float).ravel()
    flat = flat[~np.isnan(flat)]
    error = float(flat.std(ddof=1) / math.sqrt(len(flat))) if len(flat) > 1 else math.inf
    return Depth(float(flat.mean()) if len(flat) else math.nan, error)


def differences(measured: Measured, name: str, series: str, offset: int = 0, *, relative: bool = False) -> Any:
    """Neighbours less the score so far from each dip, runs × dips; relative to the neighbours if asked."""
    removed = list(measured["removed"])
    runs = np.asarray(measured[name][series], dtype=float)
    columns = []
    for dip in measured["dips"]:
        near = [removed.index(dip + k) for k in NEIGHBOURS if dip + k in removed]
        if near and dip + offset in removed:
            usual = runs[:, near].mean(axis=1)
            below = usual - runs[:, removed.index(dip + offset)]
            columns.append(below / usual if relative else below)
    return np.asarray(columns).T


def judge(measured: Measured) -> list[Claim]:
    """Each claim by a rule that its row states."""
    return [_dips(measured), _congruent(measured), _spikes(measured), _skipping(measured), _care(measured)]


RULE = "A dip: deeper than half a point and than twice its standard error (over runs and counts)."


def _dips(measured: Measured) -> Claim:
    found = depth(differences(measured, ACCURACY, KEPT))
    causes = {name: depth(values) for name, values in measured["causes"].items()}
    parts = "; ".join(f"{name} {found}" for name, found in causes.items())
    return Claim(
        '"Dips occur at removal counts where the modulus equals 1"',
        f"retrained with the last batch of one kept, accuracy is {found} below that {_neighbours()} removals later. "
        f"Below what joining that sample to the batch before gives, at the same count: {parts}",
        judged(found.is_dip),
        f"{RULE} {_cause(causes)} With the ResNet-18 of Torch Hub, whose last maps have one pixel, training does not "
        f"dip but stop: {measured['refusal'] or 'no, it does not'}.",
    )


def _cause(causes: dict[str, Depth]) -> str:
    """Which part of a batch of one does the harm: that without which at most half of the dip is left."""
    if not causes["kept"].is_dip:
        return "No cause is to be found where there is no dip."
    anew, no_step = (
        causes[name].mean / causes["kept"].mean
        for name in ("kept, statistics taken anew", "kept, statistics only, no step")
    )
    parts = {
        "what it leaves in the running statistics": anew,
        "the step on a single image, normalised by itself": no_step,
    }
    guilty = [part for part, left in parts.items() if left <= 0.5]
    cause = " and ".join(guilty) if guilty else "no single part of it"
    return (
        f"The harm is done by {cause}: with the statistics taken anew {anew:.0%} of the dip is left, without the step "
        f"{no_step:.0%}."
    )


def _congruent(measured: Measured) -> Claim:
    other = {1 - k: depth(differences(measured, ACCURACY, KEPT, k)) for k in (-1, -3, -7)}
    also = [size for size, found in other.items() if found.is_dip]
    parts = "; ".join(f"{size} samples {found}" for size, found in other.items())
    return Claim(
        '"The spikes are exactly congruent with points [...] corresponding to a final batch size of 1"',
        f"accuracy, where the last batch has more than one sample: {parts} below the same neighbours",
        judged(not also),
        f"Confirmed if none of these dips. {RULE}"
        + (
            " Every last batch takes a step as long as a whole one's, and of few samples it is a bad one."
            if also
            else ""
        ),
    )


def _spikes(measured: Measured) -> Claim:
    def stands_out(name: str, series: str) -> float:
        return -depth(differences(measured, name, series, relative=True)).mean

    published, true, ours = stands_out(NORM, KEPT), stands_out("true norm", KEPT), stands_out(NORM, JOINED)
    return Claim(
        "there are spikes at these counts (of the residual gradient norm, the figure's other panel)",
        f"at these counts, against {_neighbours()} removals later: {published:+.0%} as published, {true:+.0%} for the "
        f"true norm, {ours:+.0%} with the sample joined",
        judged(abs(published) > STANDING_OUT),
        f"Confirmed if it differs by more than {STANDING_OUT:.0%}. The published norm is the mean over batches of each "
        "batch's, in which a lone sample counts as much as 64.",
    )


def _skipping(measured: Measured) -> Claim:
    found = depth(measured["causes"]["skipped"])
    batches = measured["batches"]
    return Claim(
        'one can "skip" such removals (here: the batch of one), but "this can still lead to odd behavior"',
        f"skipping the batch of one costs {found} against joining it",
        judged(found.is_dip),
        f"{RULE} The published code divides the norms of the batches that it uses by the number of all, so that with "
        f"skipping its norm falls by 1/{batches} there: odd, but bookkeeping.",
    )


def _care(measured: Measured) -> Claim:
    kept, joined, even = (depth(differences(measured, ACCURACY, series)) for series in RETRAININGS)
    two, even_two = (depth(differences(measured, ACCURACY, series, -1)) for series in (JOINED, EVEN))
    unlearned = depth(differences(measured, ACCURACY, OURS))
    last = {series: float(np.nanmean([runs[-1] for runs in measured[ACCURACY][series]])) for series in UNLEARNED}
    first = float(np.nanmean([runs[0] for runs in measured[ACCURACY][OURS]]))
    retrained = float(np.nanmean([runs[-1] for runs in measured[ACCURACY][JOINED]]))
    after = ", ".join(f"{series} {accuracy:.1%}" for series, accuracy in last.items())
    return Claim(
        '"care must be taken when attempting to unlearn from batchnorm models"',
        f"where one sample is left over: kept {kept}, joined (ours) {joined}, even batches {even}, our unlearning "
        f"{unlearned} below {_neighbours()} removals later; where two are: ours {two}, even batches {even_two}. "
        f"Accuracy {first:.1%} before, after all removals unlearned by {after}, retrained {retrained:.1%}",
        judged(kept.is_dip and not even.is_dip and not even_two.is_dip),
        f"Confirmed if the plain loop dips and even batches do not, where one sample is left over nor where two are. "
        f"{RULE} {_two_left(two)} The published noise has a standard deviation of {measured['sigma']:.2g} here.",
    )


def _two_left(two: Depth) -> str:
    return (
        "Our training looks after a single sample only: a last batch of two dips in it as in the plain loop."
        if two.is_dip
        else "A last batch of two does not dip in our training."
    )


def _neighbours() -> str:
    *most, last = map(str, NEIGHBOURS)
    return f"{', '.join(most)} and {last}"
