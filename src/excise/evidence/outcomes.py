"""What an audit can come to, and the words for it: one sentence, what it means, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "warning", "bad", "note"]
Outcome = Literal[
    "forgotten",
    "mostly forgotten",
    "partly forgotten",
    "not forgotten",
    "overshot",
    "moved",
    "damaged",
    "undecided",
]
Claim = Literal["unqualified", "weak", "single model", "no retrained model"]

PASSED: tuple[Outcome, ...] = ("forgotten", "mostly forgotten")
LEVELS: dict[Outcome, Level] = {
    "forgotten": "good",
    "mostly forgotten": "warning",
    "partly forgotten": "warning",
    "not forgotten": "bad",
    "overshot": "bad",
    "moved": "bad",
    "damaged": "bad",
    "undecided": "note",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    level: Level
    title: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The outcome, in one sentence, and why."""

    outcome: Outcome
    sentence: str
    findings: tuple[Finding, ...]
    claim: Claim = "unqualified"
    """How much the number of retrained models lets one say; weaker ones are said to be so in the sentence."""
    remedy: str = ""
    """What to do next; nothing where the samples are forgotten."""


def sentence(outcome: Outcome, samples: int, models: int, claim: Claim) -> str:
    """The outcome in a sentence; where it is a pass, with how much can be said by so many retrained models.

    >>> sentence("forgotten", 12, 8, "unqualified")
    'The model has forgotten the 12 samples: it answers nearly as a model that never saw them.'
    """
    what = counted(samples, "sample")
    if outcome == "forgotten" and claim == "no retrained model":
        return f"The model treats the {what} like data it never saw; no retrained model was there to compare with."
    words = {
        "forgotten": f"The model has forgotten the {what}: it answers nearly as a model that never saw them.",
        "mostly forgotten": f"The model has mostly forgotten the {what}: its answers are near to those of a model that "
        "never saw them, but an attacker who has such models could still tell.",
        "partly forgotten": f"The model has forgotten the {what} in part: a trace of them is left.",
        "not forgotten": f"The model has not forgotten the {what}: it is nearer to the original than to a model that "
        "never saw them.",
        "overshot": f"The model answers the {what} worse than models that never saw them: it was pushed too far, which "
        "gives them away as remembering does.",
        "moved": f"The model changed more than it was asked to: its answers to other samples than the {samples:,} "
        "differ from retrained models' more than the original's did, and that is a trace of its own.",
        "damaged": f"The model does worse on other data than it should, so what it says about the {what} proves "
        "little.",
        "undecided": f"Whether the model has forgotten the {what} can't be told from what was measured.",
    }[outcome]
    return words + (_reservation(models, claim) if outcome in PASSED else "")


def _reservation(models: int, claim: Claim) -> str:
    if claim == "single model":
        return (
            " It is a weak claim: by a single retrained model it can't be told how much two of them differ by chance."
        )
    return (
        f" It is a weak claim: {models} retrained models are few, and may miss a small trace."
        if (claim == "weak")
        else ""
    )


MEANINGS: dict[Outcome, str] = {
    "mostly forgotten": "The answers are near to those of models that never saw the samples, yet not so near that an "
    "attacker who trains such models, and compares sample by sample, would be left with a coin toss.",
    "partly forgotten": "A good part of the trace is gone, and a part of it is left, in the answers or inside the "
    "model.",
    "not forgotten": "The model still treats the samples much as the original did.",
    "overshot": "Forgetting means to answer as a model that never saw the samples, not to answer them as wrongly as "
    "can be. This model is less sure of them than models that never saw them: it stands out, and who compares it with "
    "such models finds the samples by that.",
    "moved": "Answers to retained or to new data lie farther from those of retrained models than the original's do, "
    "and than retrained models' lie from each other. Right answers may be as many as before; but whoever compares the "
    "model with a retrained one sees the difference everywhere, the forgotten samples included.",
    "damaged": "The model gets fewer of the other samples right than it should. A model that is poor at everything "
    "looks as if it had forgotten.",
    "undecided": "This is neither a pass nor a failure. The measurements can't tell a model that forgot from one that "
    "did not: most often because the original model says much the same about these samples as a model that never saw "
    "them, so that there is little to forget, or because too few models or samples were there to compare.",
}


def remedy(outcome: Outcome, models: int) -> str:
    """What to do next after an audit by so many retrained models; nothing where the samples are forgotten.

    >>> remedy("forgotten", 8)
    ''
    """
    return {
        "forgotten": "",
        "mostly forgotten": "For use inside the house this may do. Before the model is published, forget again by "
        "another method, or retrain, and audit again with eight or more retrained models (--retrainings 8).",
        "partly forgotten": "Forget again, from the original and by another method or a longer step, and audit again. "
        "Where the findings say that the samples are hidden, take one that changes all layers.",
        "not forgotten": "Keep the request open. Forget by another method, or retrain without the samples.",
        "overshot": "Go back to the original, which is not lost, and forget with a shorter step: a smaller step_size, "
        "push or learning rate, fewer epochs, or more damping. Then audit again.",
        "moved": "Go back to the original and forget by a gentler method: without extra weight decay, with a smaller "
        "learning rate, in fewer epochs, or by a single step. Then audit again.",
        "damaged": "Go back to the original and forget by a gentler method, or retrain without the samples.",
        "undecided": _when_undecided(models),
    }[outcome]


def _when_undecided(models: int) -> str:
    if models == 0:
        advice = "audit again with three retrained models (--retrainings 3, or retrained=3): they are the truth to "
        "compare with."
    elif models < 3:
        advice = (
            "audit again with three or more retrained models (--retrainings 3, or retrained=3), so that it is known "
            "how much two of them differ by chance."
        )
    else:
        advice = f"audit again with more retrained models (--retrainings {2 * models}), which differ less on average."
    return (
        f"First read the findings: where one says what was wrong with the comparison, mend that. Then {advice} If it "
        "stays undecided, a guarantee needs no measurement: retrain without the samples, or use a model and a method "
        "that give a certificate."
    )


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "sample"), counted(2000, "sample")
    ('1 sample', '2,000 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"


def with_interval(value: float, bounds: tuple[float, float]) -> str:
    """A figure and where it lies with 95 % confidence."""
    return f"{value:.2f} (95 % interval {bounds[0]:.2f} to {bounds[1]:.2f})"
