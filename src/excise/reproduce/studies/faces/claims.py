"""What the figures of the faces experiment say about each claim of the paper."""

from __future__ import annotations

import numpy as np

from excise.reproduce.framework.experiment import Claim, Measured, judged
from excise.reproduce.studies.faces.measure import AT_ONCE, OURS, PAPER, QUIET, RETRAINED


def judge(measured: Measured) -> list[Claim]:
    """A drop is the mean accuracy before, less that at the end."""
    curves = {
        way: {score: np.asarray(rows) for score, rows in both.items()} for way, both in measured["curves"].items()
    }
    ends = {
        way: {score: float(np.mean(values)) for score, values in both.items()} for way, both in measured["ends"].items()
    }
    half = float(np.mean([one["person"] for one in measured["half"]]))
    first = {score: float(curves[PAPER][score][:, 0].mean()) for score in ("person", "others")}
    last = {way: {score: float(rows[:, -1].mean()) for score, rows in both.items()} for way, both in curves.items()}
    middle = {way: float(both["person"][:, len(measured["removed"]) // 2].mean()) for way, both in curves.items()}

    def drops(way: str) -> tuple[float, float]:
        return first["person"] - last[way]["person"], first["others"] - last[way]["others"]

    ahead = float((curves[PAPER]["others"] - curves[PAPER]["person"]).mean() - (first["others"] - first["person"]))
    gradual = [steep for one in curves[PAPER]["others"] for steep in -np.diff(one)]
    size = measured["full_size"]
    people = len(measured["half"])
    return [
        Claim(
            "as more images are scrubbed at ε = 1e-5, accuracy on that person drops faster than on the residual set",
            f"{_points(*drops(PAPER))} with the published method; {_points(*drops(QUIET))} without its noise "
            f"(person / others, points of accuracy, mean over {people} people); over the removals the person is "
            f"{_ahead(ahead)} on average",
            judged(ahead >= 0.05),
            "Rule: on average over the removals the person lost at least 5 points more. "
            f"The noise has σ = {measured['sigma']:.2g} on every weight of the slice, as for 262,200 images.",
        ),
        Claim(
            'which is "exactly as desired"',
            f"after half of the images a retrained model still knows {100 * half:.0f} % of the person's images "
            f"(published method {100 * middle[PAPER]:.0f} %), after all of them "
            f"{100 * ends[RETRAINED]['person']:.0f} % ({100 * last[PAPER]['person']:.0f} %; ours one by one "
            f"{100 * last[OURS]['person']:.0f} %, ours at once {100 * ends[AT_ONCE]['person']:.0f} % with others at "
            f"{100 * ends[AT_ONCE]['others']:.0f} %, retrained {100 * ends[RETRAINED]['others']:.0f} %)",
            judged(abs(middle[PAPER] - half) < 0.1 and abs(last[PAPER]["person"] - ends[RETRAINED]["person"]) < 0.1),
            "What is desired is what retraining does: nothing much until the last images go. Rule: within 10 points of "
            "it after half of the images and after all.",
        ),
        Claim(
            "the accuracy drop for the residual set is gradual up to a certain number of removals",
            f"the largest drop of one removal is {100 * max(gradual):.1f} points; supported removals, until others "
            f"lose {100 * measured['drop']:.0f} points: {', '.join(one[PAPER] for one in measured['supported'])}",
            judged(max(gradual) <= measured["drop"]),
            f"Rule: no single removal costs more than {100 * measured['drop']:.0f} points.",
        ),
        Claim(
            "unlearning is possible in a network of 145 M parameters, by selecting one slice",
            f"one removal from a VGG-16 of {size['parameters'] / 1e6:.0f} M parameters takes {size['seconds']:.0f} s "
            f"here (and {size['prepare_seconds']:.0f} s once, to prepare), the process at most "
            f"{size['peak_gib']:.1f} GiB",
            "confirmed",
        ),
    ]


def _ahead(share: float) -> str:
    return f"{100 * abs(share):.0f} points {'ahead of' if share > 0 else 'behind'} the others in losing accuracy"


def _points(person: float, others: float) -> str:
    return f"{100 * person:.0f} / {100 * others:.0f}"
