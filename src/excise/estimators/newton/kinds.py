"""How the objective of an estimator follows from its data, and where in the estimator its parameters are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

from excise.errors import InputError
from excise.estimators.kept import Floats, Rows
from excise.estimators.newton.design import Design
from excise.estimators.newton.linear import LinearObjective
from excise.estimators.newton.losses import Loss
from excise.estimators.newton.objective import Objective
from excise.estimators.newton.softmax import SoftmaxObjective


@dataclass(frozen=True)
class Problem:
    """What there is to minimise once some rows are gone: objectives that share no parameter."""

    objectives: Sequence[Objective]
    left: NDArray[np.bool_]
    """Which rows are left."""
    classes: NDArray[Any] | None = None


class Kind(Protocol):
    """A type of estimator, with its data."""

    def problem(self, gone: Rows) -> Problem:
        """What is to be minimised without these rows."""
        ...

    def read(self, estimator: Any, problem: Problem) -> list[Floats]:
        """The estimator's parameters, for each objective."""
        ...

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:
        """Put parameters into the estimator, in double precision."""
        ...


@dataclass(frozen=True)
class Penalty:
    """½ strength ‖coef‖², added to a sum over rows, or multiplied by their number or weight to be added to a mean."""

    strength: float
    per: str = "sum"
    """"sum"; "row" or "weight" if the strength is that of a mean over rows, or over their weights."""
    intercept: float = 0.0
    """What the intercept is penalised with, as a share of that."""

    def ridge(self, design: Design, shares: Floats, rows: int) -> Floats:
        """For each column of the design."""
        times = {"sum": 1.0, "row": float(rows), "weight": float(shares.sum())}[self.per]
        ridge = np.full(design.width, self.strength * times)
        if design.intercept:
            ridge[-1] *= self.intercept
        return ridge


def left_of(total: int, gone: Rows) -> NDArray[np.bool_]:
    """Which rows are left; at least one is."""
    left = np.ones(total, dtype=bool)
    left[gone] = False
    if not left.any():
        raise InputError(f"rows are all {total} rows of the data, so nothing is left to fit; leave some.")
    return left


@dataclass(frozen=True)
class Regression:
    """One output, and targets that are numbers."""

    design: Design
    targets: Floats
    weights: Floats
    loss: Loss
    penalty: Penalty

    def problem(self, gone: Rows) -> Problem:
        """One objective."""
        left = left_of(len(self.targets), gone)
        shares = self.weights * left
        ridge = self.penalty.ridge(self.design, shares, int(left.sum()))
        return Problem([LinearObjective(self.design, self.targets, shares, self.loss, ridge)], left)

    def read(self, estimator: Any, problem: Problem) -> list[Floats]:  # noqa: ARG002
        """Coefficients, then the intercept."""
        coef = np.asarray(estimator.coef_, dtype=np.float64).ravel()
        return [np.append(coef, estimator.intercept_) if self.design.intercept else coef]

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:  # noqa: ARG002
        """In the shapes that they had."""
        if self.design.intercept:
            old = estimator.intercept_
            estimator.intercept_ = np.full_like(old, found[0][-1], dtype=np.float64) if np.ndim(old) else found[0][-1]
        estimator.coef_ = found[0][: self.design.X.shape[1]].reshape(np.shape(estimator.coef_)).copy()


@dataclass(frozen=True)
class Classification:
    """Two classes, or a softmax of more, or one class against the rest for each of more."""

    design: Design
    labels: NDArray[Any]
    weights: Floats
    penalty: Penalty
    loss: Loss
    softmax: bool
    class_weight: Any = None
    weighted_balance: bool = True
    """Whether ``class_weight="balanced"`` heeds weights of samples."""

    @cached_property
    def _coded(self) -> tuple[NDArray[Any], NDArray[np.intp]]:
        classes, codes = np.unique(self.labels, return_inverse=True)
        return classes, codes

    def problem(self, gone: Rows) -> Problem:
        """For the classes that are left."""
        all_classes, codes = self._coded
        left = left_of(len(codes), gone)
        there = np.bincount(codes[left], minlength=len(all_classes)) > 0
        classes = all_classes[there]
        if len(classes) < 2:
            raise InputError(
                f"rows leave only the class {classes[0]!r}, and no classifier can be fitted on one; leave rows of "
                "another."
            )
        factors = np.zeros(len(all_classes))
        factors[there] = self._factors(classes, left)
        shares = self.weights * left
        which = np.flatnonzero(there)
        if len(classes) == 2:
            objectives: list[Objective] = [self._one(codes == which[1], shares * factors[codes], left)]
        elif self.softmax:
            shares = shares * factors[codes]
            ridge = self.penalty.ridge(self.design, shares, int(left.sum()))
            targets = (codes[:, None] == which[None, :]).astype(np.float64)
            objectives = [SoftmaxObjective(self.design, targets, shares, ridge)]
        else:  # the weight of a class is that of its rows against the rest, whose weight stays as it is
            objectives = [
                self._one(codes == one, shares * np.where(codes == one, factors[one], 1.0), left) for one in which
            ]
        return Problem(objectives, left, classes)

    def _factors(self, classes: NDArray[Any], left: NDArray[np.bool_]) -> Floats:
        if self.class_weight is None:
            return np.ones(len(classes))
        try:
            found: Floats = compute_class_weight(
                self.class_weight,
                classes=classes,
                y=self.labels[left],
                sample_weight=self.weights[left] if self.weighted_balance else None,
            )
        except ValueError as error:
            raise InputError(
                f"class_weight={self.class_weight!r} does not fit the classes that are left: {error}"
            ) from error
        return found

    def _one(self, positive: NDArray[np.bool_], shares: Floats, left: NDArray[np.bool_]) -> Objective:
        ridge = self.penalty.ridge(self.design, shares, int(left.sum()))
        return LinearObjective(self.design, np.where(positive, 1.0, -1.0), shares, self.loss, ridge)

    def read(self, estimator: Any, problem: Problem) -> list[Floats]:
        """The rows of the classes that are left; of a softmax that becomes binary, their difference."""
        assert problem.classes is not None
        coef = np.asarray(estimator.coef_, dtype=np.float64)
        if self.design.intercept:
            coef = np.column_stack([coef, estimator.intercept_])
        if len(coef) > 1:
            coef = coef[np.searchsorted(estimator.classes_, problem.classes)]
            if len(problem.classes) == 2:
                coef = coef[1:] - coef[:1] if self.softmax else coef[1:]
        return [coef.T.ravel()] if self.softmax and len(coef) > 1 else list(coef)

    def write(self, estimator: Any, problem: Problem, found: Sequence[Floats]) -> None:
        """A row for each class, or one for two classes."""
        wide = self.design.width
        rows = found[0].reshape(wide, -1).T if len(found) == 1 else np.array(found)
        estimator.classes_ = problem.classes
        estimator.coef_ = np.array(rows[:, : self.design.X.shape[1]], order="C")
        if self.design.intercept:
            estimator.intercept_ = rows[:, -1].copy()
        elif np.ndim(estimator.intercept_):
            estimator.intercept_ = np.zeros(len(rows))
