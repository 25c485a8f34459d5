"""Whether an estimator is at the minimum of its objective, as near as its solver goes: if not, the data are others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.estimators.newton.objective import Objective, Point, Step

SLACK = {"mean": 2.0, "sum": 2.0, "start": 10.0, "change": 50.0}
"""How much more than its rule says a solver may leave: the rules of liblinear (dual) and of sag are of other things
than the gradient, and bound it loosely."""
NEGLIGIBLE = 1e-6
"""An objective that can fall by no more than this share is at its minimum, whatever the gradient: solvers stop there
too. If 1 % of the labels are others, it is 10 times as much or more."""


@dataclass(frozen=True)
class Stopping:
    """The rule by which a solver stops."""

    tolerance: float
    rule: str
    """What the tolerance is of: "mean", the gradient of a mean over rows; "sum", that of a sum; "start", the gradient
    as a share of the pull of all rows where a fit begins; "change", what a pass changes; "none": it stops anywhere."""
    most: int
    """``max_iter``."""
    taken: int
    """``n_iter_``."""

    @classmethod
    def of(cls, estimator: Any, rule: str) -> Stopping:
        """As its parameters say."""
        taken = int(np.max(getattr(estimator, "n_iter_", 0)))
        return cls(float(estimator.tol or 0.0), rule, int(estimator.max_iter), taken)

    def allows(self, objective: Objective, point: Point, step: Step) -> bool:
        """Whether the solver could have stopped here."""
        if self.rule == "none":
            return True
        steepest = float(np.abs(point.gradient).max())
        fall = float(point.gradient @ step.direction) / 2
        scale = {"mean": objective.total, "sum": 1.0}.get(self.rule) or objective.pull
        if steepest <= SLACK[self.rule] * self.tolerance * scale:
            return True
        return fall <= NEGLIGIBLE * max(abs(point.value), objective.total)

    def refusal(self, estimator: Any, away: float, length: float) -> InputError:
        """Why an estimator that is away from the minimum is refused."""
        name = type(estimator).__name__
        far = f"{away:.2g} from the minimum of its objective on X and y (its own length is {length:.2g})"
        if self.taken >= self.most:
            return InputError(
                f"estimator: {name} stopped at max_iter={self.most}, {far}. Fit it with a larger max_iter, or pass "
                "finish=True: it is then first brought to its minimum."
            )
        others = "X, y or sample_weight are not those it was fitted on"
        if self.rule == "change":
            return InputError(
                f"estimator: {name} is {far}. Its solver stops where a pass over the rows changes little, which can be "
                f"that far, or else {others}. If they are, pass finish=True: it is then first brought to its minimum."
            )
        return InputError(
            f"estimator: {name} is {far}, though its solver says that it finished: {others}. Pass what was passed to "
            "fit, in the same order."
        )
