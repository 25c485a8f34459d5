"""What the figures of the spurious experiment say about each claim of the paper."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from excise.reproduce.framework.experiment import Claim, Measured, Verdict, clearly_above, judged
from excise.reproduce.studies.spurious.measure import ALL, FOCI, NONE, RANDOM, SELECTIONS


def position_shown(measured: Measured) -> int:
    """The position of the strength whose figures are shown factor by factor."""
    return int(measured["strengths"].index(measured["strength"]))


def times_chosen(measured: Measured, factor: str) -> int:
    """In how many runs L-FOCI chose a factor."""
    return sum(factor in run[FOCI] for run in measured["chosen"])


RULE = "Confirmed if it is better than all and than random factors, by two standard errors of the differences."


def judge(measured: Measured) -> list[Claim]:
    """Best means: above both others by more than two standard errors of the paired differences over the runs."""
    shown = position_shown(measured)
    overall = {name: np.asarray(runs)[:, shown] for name, runs in measured["scores"]["overall"].items()}
    lower = {name: lower_accuracies(measured, name) for name in SELECTIONS}
    often = sorted(measured["factors"], key=lambda factor: -times_chosen(measured, factor))
    counts = ", ".join(f"{factor} {n}" for factor in often if (n := times_chosen(measured, factor)))
    claims = [
        Claim(
            "regularising with FOCI's factors keeps the overall accuracy high, and gives the best result of all, a "
            "random subset and FOCI",
            f"overall {_listed(overall)}; {_by_strength(measured, 'overall')}",
            _best(overall),
            f"L-FOCI's factors over {len(measured['chosen'])} runs: {counts}. They are the ones that the label is told "
            "by, so features that hide them have to hide a part of the label; few random factors are. "
            f"{RULE}",
        ),
        Claim(
            "FOCI preserves high accuracy on the samples with and without correlated attributes, best of the three",
            f"the lower of the two accuracies, mean over the factors with a correlation of 0.1 or more: "
            f"{_listed(lower)}",
            _best(lower),
            RULE,
        ),
        Claim(
            "regularising over a large number of outside factors can adversely affect training",
            f"against all {len(measured['factors'])}: {overall[ALL].mean():.3f} overall, "
            f"{overall[NONE].mean():.3f} without regularisation",
            judged(clearly_above(overall[NONE], overall[ALL])),
            "Confirmed if none is better than all by two standard errors.",
        ),
    ]
    if "shifted" not in measured["scores"]:
        return claims
    shifted = {name: np.asarray(runs)[:, shown] for name, runs in measured["scores"]["shifted"].items()}
    helped = clearly_above(shifted[FOCI], shifted[NONE]) and not clearly_above(shifted[ALL], shifted[FOCI])
    return [
        *claims,
        Claim(
            "it is only necessary to include regularisers over the factors in the Markov blanket",
            f"where factors say nothing about the label any more: {_listed(shifted)} (mean of both labels; 0.5 is "
            f"chance); {_by_strength(measured, 'shifted')}",
            judged(helped),
            "Confirmed if L-FOCI's is better than none, and all of them not better than L-FOCI's, by two standard "
            "errors of the differences. The factors left out are correlated with the label too, and nothing keeps the "
            "network from using them.",
        ),
    ]


def lower_accuracies(measured: Measured, selection: str) -> NDArray[np.float64]:
    """For each run, the lower of the accuracies with and without a factor, mean over the correlated factors."""
    correlated = np.abs(measured["correlation"]) >= 0.1
    both = np.asarray([measured[side][selection] for side in ("with", "without")], dtype=float)
    lower: NDArray[np.float64] = np.nanmean(both.min(axis=0)[:, correlated], axis=1)
    return lower


def _best(scores: dict[str, NDArray[np.float64]]) -> Verdict:
    return judged(all(clearly_above(scores[FOCI], scores[other]) for other in (ALL, RANDOM)))


def _listed(scores: dict[str, NDArray[np.float64]]) -> str:
    return ", ".join(f"{name} {values.mean():.3f} ± {values.std():.3f}" for name, values in scores.items())


def _by_strength(measured: Measured, score: str) -> str:
    """The means at the other strengths."""
    means = {name: np.mean(runs, axis=0) for name, runs in measured["scores"][score].items() if name != NONE}
    return (
        "; ".join(
            f"at strength {strength:g}: " + ", ".join(f"{mean[at]:.3f}" for mean in means.values())
            for at, strength in enumerate(measured["strengths"])
            if strength != measured["strength"]
        )
        + f" ({', '.join(means)})"
    )
