"""What an experiment of the paper is: what it measures, how that is drawn, and what it says about each claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from excise.reproduce.framework.run import Run

S = TypeVar("S")
Verdict = Literal["confirmed", "not confirmed", "out of reach"]
Measured = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what was measured of it, and the verdict, computed from the figures."""

    paper: str
    """What the paper says, with its figures."""
    measured: str
    verdict: Verdict
    why: str = ""
    """Where and why the measurement differs, or why it is out of reach."""


def judged(holds: object) -> Verdict:
    """The verdict on a claim that can be measured here."""
    return "confirmed" if holds else "not confirmed"


def clearly_above(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether the paired differences have a mean of more than two standard errors."""
    differences = np.asarray(one) - np.asarray(other)
    error = float(differences.std(ddof=1)) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return bool(differences.mean() > 2 * error)


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One table or figure of the paper."""

    name: str
    title: str
    where: str
    """Its place in the paper, such as "Figure 5, left"."""
    data: str
    """What it is run on; a stand-in is named as such."""
    published: S
    """The paper's settings (appendix B), a frozen dataclass; what the paper leaves open is as in ``settings``."""
    settings: S
    """Those of the full run here: what a machine of two cores does in half an hour."""
    quick: S
    """Those of a try within two minutes, which the tests run."""
    measure: Callable[[Run[S]], Measured]
    """Runs it, step by step; gives what goes into ``result.json``, plain values only."""
    draw: Callable[[Measured, Any], None]
    """Draws what was measured into an empty matplotlib figure, on the paper's axes."""
    judge: Callable[[Measured], Sequence[Claim]]
    notes: str = ""
    """Markdown for the page: how it was measured, where it departs from the paper and why."""
    size: tuple[float, float] = (9.0, 4.0)
    """Of the plot, in inches."""

    def at(self, scale: str) -> S:
        """The settings of a scale: "quick", "full" or "paper"."""
        return {"full": self.settings, "quick": self.quick, "paper": self.published}[scale]

    def reductions(self, settings: S) -> list[str]:
        """Where these settings differ from those of the paper's scale."""
        ours, theirs = asdict(settings), asdict(self.published)  # type: ignore[call-overload]
        return [
            f"{name}: {theirs[name]} at paper scale, {ours[name]} here" for name in ours if ours[name] != theirs[name]
        ]
