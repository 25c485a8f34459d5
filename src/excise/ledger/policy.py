"""Policy: how requests are carried out, and what a model must keep to be given out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from excise._support.checks import choice, is_number, require, whole
from excise.errors import ExciseError
from excise.evidence.outcomes import PASSED
from excise.privacy.accountant import BudgetAccountant
from excise.privacy.arguments import number
from excise.privacy.mechanism import Privacy
from excise.unlearning.answers import CHANCE
from excise.unlearning.guard import DEFAULT_GUARD, Guard
from excise.unlearning.method import method_named, settings_of

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit
    from excise.unlearning.forgotten import Forgotten
    from excise.unlearning.method import Method


class GateBroken(ExciseError):
    """A model that must not be given out: it lost too much, or did not forget as the policy asks."""

    def __init__(self, message: str, evidence: dict[str, Any]) -> None:
        super().__init__(message)
        self.evidence = evidence


@dataclass(frozen=True)
class Policy:
    """How requests are carried out, and when they stop."""

    method: Method | str = "auto"
    guard: Guard | None = DEFAULT_GUARD
    """What one request may cost."""
    points: float | None = 2.0
    """How many points of accuracy all requests together may cost on held-out samples; None for no limit."""
    retrainings: int | None = None
    """Retrained models that each batch is audited against; 0 for an audit without any, None for no audit."""
    must_pass: bool = False
    """Whether a batch that the audit does not call forgotten stops; it needs an audit."""
    epsilon: float | None = None
    """ε of every batch's noise, with ``delta``."""
    delta: float | None = None
    total: tuple[float, float] | None = None
    """The budget: ε and δ of all batches together, until the model is retrained."""
    noise: Literal["worst-case", "certificate"] = "certificate"
    lipschitz: float | None = None
    hessian_lipschitz: float | None = None
    batch_statistics: Literal["keep", "reestimate"] = "keep"
    batch: int = 64
    """At most so many requests make one model version; those that are due first come first."""
    attempts: int = 5
    """How often a request that fails is tried again by itself."""
    seed: int = 0

    def __post_init__(self) -> None:
        method_named(self.method)
        require(self.guard is None or isinstance(self.guard, Guard), "guard", self.guard, "a Guard or None")
        allowed = self.points is None or (is_number(self.points) and self.points >= 0)
        require(allowed, "points", self.points, "0 or more, or None")
        if self.retrainings is not None:
            whole(self.retrainings, "retrainings", 0)
        why = "a verdict comes from an audit: set retrainings, 0 or more"
        require(not self.must_pass or self.retrainings is not None, "must_pass", self.must_pass, "False", why)
        both = (self.epsilon is None) == (self.delta is None)
        require(both, "delta", self.delta, "given with epsilon, or neither")
        if self.epsilon is not None:
            number(self.epsilon, "epsilon", positive=True)
            number(self.delta, "delta", positive=True, below=1)
        if self.total is not None:
            pair = isinstance(self.total, tuple | list) and len(self.total) == 2
            require(pair, "total", self.total, "a pair of ε and δ, or None")
            BudgetAccountant(*self.total)  # which checks both: a budget of the ledger stays
        spends = self.total is None or self.epsilon is not None
        require(spends, "total", self.total, "None without epsilon", "without noise a model shows all that is left")
        choice(self.noise, ("worst-case", "certificate"), "noise")
        for name in ("batch", "attempts"):
            whole(getattr(self, name), name, 1)
        whole(self.seed, "seed", 0)

    def privacy(self, budget: BudgetAccountant | None) -> Privacy:
        """What noise rests on, with a budget from which earlier batches have spent."""
        return Privacy(self.lipschitz, self.hessian_lipschitz, budget, noise=self.noise)

    def settings(self) -> dict[str, Any]:
        """In plain values, for records."""
        plain: dict[str, Any] = settings_of(self)
        return plain

    def require_gates(self, done: Forgotten, first: float | None, held_out: int, audited: Audit | None) -> None:
        """Raise ``GateBroken``, with the evidence, for a model that must not be given out.

        Args:
            done: The model and what was measured.
            first: Accuracy of the model as it was trained on the held-out samples.
            held_out: How many held-out samples that was measured on.
            audited: What the audit found.
        """
        after = None if done.held_out_accuracy is None else done.held_out_accuracy[1]
        if self.points is not None and first is not None and after is not None:
            lost = points_lost(first, after, held_out)
            if lost > self.points:
                raise GateBroken(
                    f"held-out accuracy would be {after:.1%}, and that of the model as it was trained is {first:.1%}: "
                    f"{lost:.1f} points are lost beyond chance, and the policy allows {self.points:g}. Retrain, or "
                    "allow more.",
                    {"gate": "utility", "accuracy": after, "first": first, "points": self.points},
                )
        if self.must_pass and audited is not None and audited.verdict.outcome not in PASSED:
            raise GateBroken(
                f"the audit's verdict is '{audited.verdict.outcome}': {audited.verdict.sentence} The policy asks for "
                "a pass. Retrain, or choose another method.",
                {"gate": "verdict", "verdict": audited.verdict.outcome, "sentence": audited.verdict.sentence},
            )


def points_lost(first: float, after: float, samples: int) -> float:
    """How many points of accuracy are lost beyond chance: right answers come and go, even where nothing is lost.

    >>> points_lost(0.9, 0.8, 400), points_lost(0.9, 0.89, 100)
    (6.8377, 0.0)
    """
    lost = max(0.0, (first - after) * samples)
    return round(100 * max(0.0, lost - CHANCE * math.sqrt(lost)) / max(1, samples), 4)
