"""How much work an audit does: less for a quick look, more for narrower intervals."""

from __future__ import annotations

from dataclasses import dataclass, fields

from excise._support.checks import whole
from excise.evidence.evaluation import RETAINED_SAMPLES


@dataclass(frozen=True)
class Effort:
    """What an audit spends; the defaults are those of all published figures.

    >>> Effort(relearn_steps=0)
    Traceback (most recent call last):
        ...
    excise.errors.InputError: relearn_steps must be a whole number, 1 or more, not 0.
    """

    relearn_steps: int = 100
    """Steps of learning the forgotten samples again, for each model, before that is given up."""
    resamples: int = 1000
    """Of the bootstrap, for the intervals of attacks and utilities."""
    permutations: int = 9_999
    """Of the rank test of the forgotten samples' losses against held-out ones."""
    held_out_resamples: int = 1_999
    """Of the bootstrap of that difference."""
    few_shot_draws: int = 10
    """How often the few-shot probe is taught, from other examples each time."""
    retained_samples: int = RETAINED_SAMPLES
    """Of the retained samples that figures are taken on, at most, drawn at random."""

    def __post_init__(self) -> None:
        for field in fields(self):
            whole(getattr(self, field.name), field.name)
