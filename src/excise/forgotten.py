"""The outcome of a request: the model without the samples, what was changed and why, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from excise.privacy import Certificate


@dataclass(frozen=True)
class Forgotten:
    """A model without some samples, and how it came about."""

    model: nn.Module
    ids: tuple[int, ...]
    slices: tuple[str, ...]
    """Names of the slices that were updated."""
    scores: dict[str, float]
    """Why: for each slice that L-FOCI picked, the sum of its T over the samples."""
    seconds: float
    stages: dict[str, float]
    """Seconds by stage."""
    step_share: float
    """How much of the step was taken: less than 1 where the guard or the line search shortened it."""
    parameters_changed: int
    forget_loss: tuple[float, float]
    """Mean loss of the forgotten samples before and after."""
    retain_loss: tuple[float, float]
    """Mean loss of a sample of those retained, before and after."""
    _certify: Callable[[], Certificate] = field(repr=False)

    @cached_property
    def certificate(self) -> Certificate:
        """What is guaranteed; computed on first use, with one pass over the retained samples."""
        return self._certify()

    def as_dict(self) -> dict[str, Any]:
        """All but the model, for a record; computes the certificate."""
        certificate = self.certificate
        return {
            "ids": list(self.ids),
            "slices": list(self.slices),
            "scores": self.scores,
            "seconds": self.seconds,
            "stages": self.stages,
            "step_share": self.step_share,
            "parameters_changed": self.parameters_changed,
            "forget_loss": list(self.forget_loss),
            "retain_loss": list(self.retain_loss),
            "certificate": {"kind": certificate.kind, "bound": certificate.bound, "reason": certificate.reason},
        }

    def summary(self) -> str:
        """What happened, in a few lines."""
        lines = [
            f"forgot {len(self.ids)} sample{'s' if len(self.ids) != 1 else ''} in {self.seconds:.2f} s",
            f"changed {self.parameters_changed:,} parameters in {len(self.slices)} slices",
            f"loss of the forgotten: {self.forget_loss[0]:.4f} before, {self.forget_loss[1]:.4f} after",
            f"loss of a retained sample: {self.retain_loss[0]:.4f} before, {self.retain_loss[1]:.4f} after",
        ]
        if self.step_share < 1:
            lines.append(f"the step was shortened to {self.step_share:.0%} to protect the retained samples")
        return "\n".join(lines)
