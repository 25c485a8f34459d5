"""What is kept of an estimator whose objective is convex: its minimum, and what makes the next Newton steps fast."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.estimators.kept import Floats, Options, Refit, Rows
from excise.estimators.newton.kinds import Kind, Problem
from excise.estimators.newton.minimum import FINISHED, Minimum, minimise
from excise.estimators.newton.steps import Steps, steps_for
from excise.estimators.newton.stopping import Stopping

ENOUGH = 0.75
"""The share of the rows' weight that must be left for kept steps to be of use."""
NEAR = 0.01
"""Steps are made anew at the minimum if the estimator was farther from it, as a share of its length."""


@dataclass(frozen=True)
class KeptMinimum:
    """An estimator at its minimum, with its data."""

    estimator: Any
    kind: Kind
    options: Options
    finished: Any
    """The estimator, brought to the minimum in double precision."""
    steps: Sequence[Steps]
    totals: Sequence[float]
    remark: str
    """What there is to say of how the estimator was fitted."""

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Newton steps on the objective of the other rows, from the last weights."""
        problem = self.kind.problem(gone)
        starts = self.kind.read(self.finished if last is None else last, problem)
        found = [
            minimise(one, start, tolerance=self.options.tolerance, steps=steps)
            for one, start, steps in zip(problem.objectives, starts, self._steps(problem, starts), strict=True)
        ]
        if not all(math.isfinite(one.bound) for one in found):
            raise InputError(
                f"rows: without these {len(gone)} rows, the objective of {type(self.estimator).__name__} has no minimum "
                "that can be found: the classes may be separable, or columns depend on each other, and nothing is "
                "penalised. Fit it with a penalty (a smaller C, or alpha above 0)."
            )
        refitted, rounding = written(self.estimator, self.kind, problem, found)
        bound = math.hypot(*(one.bound for one in found)) + rounding
        moved = math.hypot(*(one.moved for one in found))
        return Refit(refitted, bound, moved, self._words(len(gone), found, bound, moved))

    def _steps(self, problem: Problem, starts: Sequence[Floats]) -> Sequence[Steps | None]:
        """Those that were kept, if they still are of use."""
        objectives = problem.objectives
        alike = len(objectives) == len(self.steps) and all(
            one.total >= ENOUGH * total for one, total in zip(objectives, self.totals, strict=True)
        )
        same = problem.classes is None or np.array_equal(problem.classes, self.finished.classes_)
        return self.steps if alike and same else [None] * len(starts)

    def _words(self, count: int, found: Sequence[Minimum], bound: float, moved: float) -> str:
        rows = f"{count} row{'' if count == 1 else 's'}"
        words = (
            f"Newton steps to the minimum of the objective without {rows}: the parameters moved by {moved:.3g} and are at "
            f"most {bound:.3g} from it, for sure."
        )
        if any(one.rounded for one in found) or bound > self.options.tolerance * max(moved - bound, 0.0):
            words += f" Rounding allows no better, so that this is more than {self.options.tolerance:g} of the move."
        return words + self.remark


def keep_minimum(estimator: Any, kind: Kind, options: Options, stopping: Stopping) -> KeptMinimum:
    """Find the minimum that the estimator is near, or say that it is not near one."""
    problem = kind.problem(np.array([], dtype=np.intp))
    starts = kind.read(estimator, problem)
    if options.trusted:  # the minimum of these data is of no interest: other rows will be gone
        points = [one.at(start) for one, start in zip(problem.objectives, starts, strict=True)]
        steps = [steps_for(point) for point in points]
        return KeptMinimum(estimator, kind, options, estimator, steps, _totals(problem), "")
    found, steps = [], []
    for one, start in zip(problem.objectives, starts, strict=True):
        point = one.at(start)
        way = steps_for(point)
        step = way.step(point)
        if not (options.finish or stopping.allows(one, point, step)):
            raise stopping.refusal(estimator, step.length, float(np.linalg.norm(start)))
        minimum = minimise(one, start, tolerance=FINISHED, steps=way, of_length=True)
        if not math.isfinite(minimum.bound):
            raise InputError(
                f"estimator: the objective of {type(estimator).__name__} has no minimum that can be found on X and y: the "
                "classes may be separable, or columns depend on each other, and nothing is penalised. Fit it with a "
                "penalty (a smaller C, or alpha above 0)."
            )
        if minimum.moved > NEAR * float(np.linalg.norm(minimum.weights)):
            way = steps_for(one.at(minimum.weights))
        found.append(minimum)
        steps.append(way)
    finished = copy.deepcopy(estimator)
    kind.write(finished, problem, [one.weights for one in found])
    return KeptMinimum(
        estimator, kind, options, finished, steps, _totals(problem), _remark(estimator, found, starts, stopping)
    )


def _totals(problem: Problem) -> list[float]:
    return [one.total for one in problem.objectives]


def _remark(estimator: Any, found: Sequence[Minimum], starts: Sequence[Floats], stopping: Stopping) -> str:
    """How far the solver had been from the minimum."""
    away = math.hypot(*(one.moved for one in found))
    length = math.hypot(*(float(np.linalg.norm(start)) for start in starts))
    share = f"{away:.2g} from the minimum on all rows, {away / length:.1%} of its length" if length else f"{away:.2g}"
    if stopping.rule == "none":
        return (
            f" {type(estimator).__name__} does not go to the minimum itself: it had stopped {share}. What is returned is "
            "at the minimum, and the move is counted from there."
        )
    return f" The solver had stopped {share}; the move is counted from that minimum."


def written(estimator: Any, kind: Kind, problem: Problem, found: Sequence[Minimum]) -> tuple[Any, float]:
    """A copy of the estimator with new parameters, and how much rounding to its precision changes them.

    ``n_iter_`` is the number of Newton steps.
    """
    new = copy.deepcopy(estimator)
    kind.write(new, problem, [one.weights for one in found])
    _count(new, max(1, *(one.steps for one in found)) if len(found) > 1 else max(1, found[0].steps))
    kept = np.asarray(estimator.coef_).dtype
    if kept == np.float64:
        return new, 0.0
    off = 0.0
    for name in ("coef_", "intercept_"):
        exact = getattr(new, name)
        rounded = np.asarray(exact, dtype=kept) if np.ndim(exact) else kept.type(exact)
        off = math.hypot(off, float(np.linalg.norm(np.asarray(exact - rounded, dtype=np.float64))))
        setattr(new, name, rounded)
    return new, off


def _count(estimator: Any, steps: int) -> None:
    """Say how many steps it took, in the shape that the solver said it."""
    if not hasattr(estimator, "n_iter_"):
        return
    old = estimator.n_iter_
    estimator.n_iter_ = np.full_like(old, steps) if np.ndim(old) else type(old)(steps)
