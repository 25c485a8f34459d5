"""All that was measured of one model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from excise.evidence.attacks import Attack
from excise.evidence.evaluation import summary_of
from excise.evidence.few_shot import FewShot
from excise.evidence.held_out import HeldOutComparison
from excise.evidence.relearning import Relearning
from excise.evidence.utility import Utility


@dataclass(frozen=True)
class ModelMetrics:
    """What was measured of one model."""

    name: str
    forget: Utility
    retain: Utility
    test: Utility
    attacks: dict[str, Attack]
    """By what they look at; ``loss`` is always there."""
    held_out: HeldOutComparison
    """The forgotten samples' losses against those of held-out samples of the same classes."""
    relearning: Relearning
    few_shot: FewShot | None
    """For classes and persons: how well a few examples bring them back."""
    model_hash: str

    @property
    def summary(self) -> dict[str, float]:
        """UA, RA, TA and MIA: what other papers average their gaps over. The first three are NaN of an error (rmse)."""
        return summary_of(self.shares, self.attacks["loss"].auc)

    @property
    def shares(self) -> tuple[float, float, float]:
        """How much was right of forgotten, retained and test samples; NaN of an error, which is no share."""
        if self.forget.metric == "rmse":
            return np.nan, np.nan, np.nan
        return self.forget.value, self.retain.value, self.test.value
