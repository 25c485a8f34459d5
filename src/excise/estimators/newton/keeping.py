"""What is kept of an estimator whose objective is convex: its minimum, and what makes the next Newton steps fast."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_feature_names, _check_n_features

from excise.errors import InputError
from excise.estimators.kept import NO_ROWS, Data, Floats, Options, Refit, Rows
from excise.estimators.newton.kinds import Kind, Problem
from excise.estimators.newton.minimum import FINISHED, Minimum, minimise
from excise.estimators.newton.steps import Steps, steps_for
from excise.estimators.newton.stopping import Stopping

ENOUGH = 0.75
"""The share of the rows' weight that must be left for kept steps to be of use."""


@dataclass(frozen=True)
class KeptMinimum:
    """An estimator at its minimum, with its data."""

    estimator: Any
    data: Data
    kind: Kind
    options: Options
    finished: Any
    """The estimator, brought to the minimum in double precision."""
    steps: Sequence[Steps]
    totals: Sequence[float]
    remark: str = ""
    """What there is to say of how the estimator was fitted."""

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Newton steps on the objective of the other rows, from the last weights."""
        problem = self.kind.problem(gone)
        before = self.finished if last is None else last
        starts = starts_of(self.kind, before, problem)
        found = [
            minimise(one, start, tolerance=self.options.tolerance, steps=steps)
            for one, start, steps in zip(problem.objectives, starts, self._steps(problem), strict=True)
        ]
        if not all(math.isfinite(one.bound) for one in found):
            raise _no_minimum(self.estimator, f"rows: without these {len(gone)} rows")
        refitted, rounding = self._written(problem, found)
        bound = math.hypot(*(one.bound for one in found)) + rounding
        moved = math.hypot(*(one.moved for one in found)) if _comparable(before, refitted) else math.nan
        rounded = rounding > 0 or any(one.rounded for one in found)
        return Refit(refitted, bound, moved, self._words(len(gone), bound, moved, rounded))

    def _steps(self, problem: Problem) -> Sequence[Steps | None]:
        """Those that were kept, if they still are of use."""
        objectives = problem.objectives
        alike = len(objectives) == len(self.steps) and all(
            one.total >= ENOUGH * total for one, total in zip(objectives, self.totals, strict=True)
        )
        same = problem.classes is None or np.array_equal(problem.classes, self.finished.classes_)
        return self.steps if alike and same else [None] * len(objectives)

    def _written(self, problem: Problem, found: Sequence[Minimum]) -> tuple[Any, float]:
        """A copy of the estimator with new parameters, and how much rounding to its precision changes them.

        ``n_iter_`` is the number of Newton steps.
        """
        new = copy.deepcopy(self.estimator)
        if hasattr(new, "n_iter_"):
            steps = max(1, *(one.steps for one in found), 1)
            new.n_iter_ = np.full_like(new.n_iter_, steps) if np.ndim(new.n_iter_) else steps
        self.kind.write(new, problem, [one.weights for one in found])
        if self.options.trusted:  # a step before this one may have other columns now
            _check_feature_names(new, self.data.X, reset=True)
            _check_n_features(new, self.data.X, reset=True)
        return new, _rounded(new, np.asarray(self.estimator.coef_).dtype)

    def _words(self, count: int, bound: float, moved: float, rounded: bool) -> str:
        which = f" without {count} row{'' if count == 1 else 's'}" if count else ""
        words = f"Newton steps to the minimum of the objective{which}: the parameters "
        words += "are fewer than before," if math.isnan(moved) else f"moved by {moved:.3g}"
        words += f" and are at most {bound:.3g} from it, for sure."
        if rounded and not bound <= self.options.tolerance * (moved - bound):
            words += f" Rounding allows no better, though {self.options.tolerance:g} of the move was asked for."
        return words + self.remark


def keep_minimum(estimator: Any, data: Data, kind: Kind, options: Options, stopping: Stopping) -> KeptMinimum:
    """Find the minimum that the estimator is near, or say that it is not near one."""
    problem = kind.problem(NO_ROWS)
    objectives = problem.objectives
    starts = starts_of(kind, estimator, problem)
    totals = [one.total for one in objectives]
    if options.trusted:  # these data have a minimum elsewhere, to which the first request will go
        steps = [steps_for(one.at(start)) for one, start in zip(objectives, starts, strict=True)]
        return KeptMinimum(estimator, data, kind, options, estimator, steps, totals)
    found, steps = [], []
    for one, start in zip(objectives, starts, strict=True):
        point = one.at(start)
        way = steps_for(point)
        step = way.step(point)
        if not (options.finish or stopping.allows(one, point, step)):
            if not step.least > 0:
                raise _no_minimum(estimator, "estimator: on X and y")
            raise stopping.refusal(estimator, step.length, float(np.linalg.norm(start)))
        minimum = minimise(one, start, tolerance=FINISHED, steps=way, of_length=True)
        if not math.isfinite(minimum.bound):
            raise _no_minimum(estimator, "estimator: on X and y")
        found.append(minimum)
        steps.append(way if minimum.way is way else steps_for(one.at(minimum.weights)))
    finished = copy.deepcopy(estimator)
    kind.write(finished, problem, [one.weights for one in found])
    return KeptMinimum(estimator, data, kind, options, finished, steps, totals, _remark(finished, found, stopping))


def starts_of(kind: Kind, estimator: Any, problem: Problem) -> list[Floats]:
    """The estimator's parameters for each objective, or where a fit begins if there are others now."""
    starts = kind.read(estimator, problem)
    sizes = [one.size for one in problem.objectives]
    return starts if [len(one) for one in starts] == sizes else [one.origin for one in problem.objectives]


def _comparable(before: Any, after: Any) -> bool:
    """Whether they have the same parameters."""
    same_classes = np.array_equal(getattr(before, "classes_", ()), getattr(after, "classes_", ()))
    return same_classes and np.shape(before.coef_) == np.shape(after.coef_)


def _rounded(estimator: Any, kept: np.dtype[Any]) -> float:
    """Round to the precision of the fit, and say how far that is."""
    if kept == np.float64:
        return 0.0
    off = 0.0
    for name in ("coef_", "intercept_"):
        exact = getattr(estimator, name)
        rounded = np.asarray(exact, dtype=kept) if np.ndim(exact) else kept.type(exact)
        off = math.hypot(off, float(np.linalg.norm(np.asarray(exact - rounded, dtype=np.float64))))
        setattr(estimator, name, rounded)
    return off


def _remark(finished: Any, found: Sequence[Minimum], stopping: Stopping) -> str:
    """How far the solver had been from the minimum."""
    away = math.hypot(*(one.moved for one in found))
    length = math.hypot(*(float(np.linalg.norm(one.weights)) for one in found))
    far = f"{away:.2g} from the minimum on all rows ({away / length if length else 0.0:.2%} of its length)"
    if stopping.rule == "none":
        return (
            f" {type(finished).__name__} does not go to the minimum itself: it had stopped {far}. What is returned is "
            "at the minimum, and the move is counted from there."
        )
    return f" The solver had stopped {far}, from which the move is counted."


def _no_minimum(estimator: Any, where: str) -> InputError:
    return InputError(
        f"{where}, the objective of {type(estimator).__name__} has no minimum that can be found: the classes may be "
        "separable, or columns depend on each other, and nothing is penalised (or rows are so few that the scale of "
        "residuals falls to 0). Fit it with a stronger penalty (a smaller C, a larger alpha), or on more rows."
    )
