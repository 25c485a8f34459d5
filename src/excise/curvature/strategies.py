"""With which curvature a Newton step is taken, and what of it is made once for all requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from excise._support.checks import whole
from excise._support.memory import bytes_in
from excise._support.names import fill_in, named
from excise.curvature import kfac
from excise.curvature.last_layer import LastLayerInputs, last_layer_inputs, trains_only_last_layer
from excise.curvature.operators import Kind, curvature
from excise.curvature.solvers import CG, Automatic, Solver, solver_named
from excise.errors import warn
from excise.slices.slices import Block, Slices
from excise.task.parameters import trainable
from excise.task.precision import in_single
from excise.task.task import Task

SAMPLES = 1000
MOST_LAST_LAYER_INPUTS = 20_000
LEAST_DAMPING = 1e-4  # of the cached curvature, which is of low rank: without weight decay it could not be inverted
CLOSE_ENOUGH = 0.03  # residual at which conjugate gradients stop: the step itself is less exact than this


class MovedToCPUWarning(UserWarning):
    """A block did not fit into the device's memory, and was solved on the CPU."""


class InverseCurvature(Protocol):
    """Solves with a model's curvature."""

    def solve(self, model: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        """(C + λI)⁻¹ gradient on the block, with C that of the retained samples, without some that are forgotten."""


def trace_of(inverse: InverseCurvature) -> float | None:
    """The trace of a curvature; None for those that don't know it."""
    found: float | None = getattr(inverse, "trace", None)
    return found


class Curvature(Protocol):
    """Makes what all requests share."""

    knows_slices_only: ClassVar[bool]
    """Whether it has no curvature of parameters outside slices, such as those of normalisation layers."""

    def count(self, task: Task, model: nn.Module, slices: Slices) -> int:
        """How many retained samples to take it from."""

    def prepare(
        self, task: Task, model: nn.Module, slices: Slices, ids: Tensor, *, seed: int, all_slices: bool
    ) -> InverseCurvature:
        """The curvature of these samples; ``all_slices`` says that every request will move all of them."""


@dataclass(frozen=True)
class Cached:
    """Kept curvature (see ``kfac``): made once, so that a request's solve costs next to nothing.

    Where the linear output layer is all that is trained, it preconditions conjugate gradients with the exact curvature
    of all samples: that costs little there, and convex models deserve an exact step.
    """

    samples: int | None = None
    """Retained samples that it is taken from; None for 1,000, and for a linear output layer alone 20,000."""
    rank: int = kfac.RANK
    """Eigenvectors kept of what a layer sees."""
    rows: int = kfac.ROWS
    """Rows of the Gauss-Newton matrix that are drawn."""
    exact: int = kfac.EXACT_ROWS
    """How many of these, the largest, are kept as they are."""
    iterations: int = 8
    """Of conjugate gradients, for a linear output layer alone."""
    memory: int | str | None = None
    """How much of it may be held in memory, such as ``"2GiB"``: the rest lies in a temporary file, and a solve goes
    layer by layer. Making it takes as much again, or one layer and one sample's gradient. None for half of what is
    free."""

    knows_slices_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("rank", "rows", "iterations"):
            whole(getattr(self, name), name)
        whole(self.exact, "exact", 0)
        if self.samples is not None:
            whole(self.samples, "samples")
        if self.memory is not None:
            bytes_in(self.memory, "memory")

    def count(self, task: Task, model: nn.Module, slices: Slices) -> int:
        """How many retained samples to take it from."""
        if self.samples is not None:
            return self.samples
        return MOST_LAST_LAYER_INPUTS if trains_only_last_layer(task, model, slices) else SAMPLES

    def prepare(
        self, task: Task, model: nn.Module, slices: Slices, ids: Tensor, *, seed: int, all_slices: bool
    ) -> InverseCurvature:
        """Made of these samples; a model that has no such curvature gets ``GGN`` of as many."""
        if not kfac.can_cache(task, model, slices):
            return GGN(len(ids), Automatic(self.iterations)).prepare(
                task, model, slices, ids, seed=seed, all_slices=all_slices
            )
        options = {"rank": self.rank, "rows": self.rows, "exact": self.exact, "seed": seed}
        memory = None if self.memory is None else bytes_in(self.memory, "memory")
        kept = kfac.cache(task, model, slices, ids, memory=memory, **options)
        seen = last_layer_inputs(task, model, slices, ids) if trains_only_last_layer(task, model, slices) else None
        if seen is not None:
            return _Preconditioned(task, kept, seen, self.iterations)
        damping = max(task.weight_decay, LEAST_DAMPING)
        if all_slices:  # made now, not in the first request
            block = slices.block(range(len(slices)))
            kept.solve(block, torch.zeros_like(in_single(block.gather(trainable(model)))), damping=damping)
        return _Kept(kept, damping)


@dataclass(frozen=True)
class _Kept:
    kept: kfac.KroneckerPlusRows
    damping: float

    @property
    def trace(self) -> float:
        return self.kept.trace

    def solve(self, _: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        return self.kept.to(gradient.device).solve(block, gradient, damping=self.damping, without=without)


@dataclass(frozen=True)
class _Preconditioned:
    task: Task
    kept: kfac.KroneckerPlusRows
    seen: LastLayerInputs
    iterations: int

    @property
    def trace(self) -> float:
        return self.kept.trace

    def solve(self, model: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        operator = self.seen.to(gradient.device).curvature(self.task, model, block, without)
        divide = self.kept.to(gradient.device).precondition(block, max(self.task.weight_decay, LEAST_DAMPING))
        cg = CG(self.iterations, CLOSE_ENOUGH)
        return cg.solve(operator, gradient, damping=self.task.weight_decay, precondition=divide).x


@dataclass(frozen=True)
class _PerRequest:
    """Products with the curvature of some retained samples, computed anew for every request."""

    samples: int = SAMPLES
    """Retained samples that it is taken from."""
    solver: Solver = field(default_factory=Automatic)
    """An object, or its name: ``"auto"``, ``"cg"``, ``"cholesky"``."""

    knows_slices_only: ClassVar[bool] = False
    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        whole(self.samples, "samples")
        fill_in(self, solver=solver_named(self.solver))

    def count(self, _: Task, __: nn.Module, ___: Slices) -> int:
        """How many retained samples to take it from."""
        return self.samples

    def prepare(
        self, task: Task, model: nn.Module, slices: Slices, ids: Tensor, *, seed: int, all_slices: bool
    ) -> InverseCurvature:
        """Nothing is made before a request."""
        del model, slices, seed, all_slices
        return _Sampled(task, ids, self.kind, self.solver)


@dataclass(frozen=True)
class GGN(_PerRequest):
    """The generalised Gauss-Newton matrix, computed for every request."""

    kind: ClassVar[Kind] = "ggn"


@dataclass(frozen=True)
class Hessian(_PerRequest):
    """The true second derivatives, computed for every request."""

    kind: ClassVar[Kind] = "hessian"


@dataclass(frozen=True)
class Fisher(_PerRequest):
    """The empirical Fisher matrix, computed for every request."""

    kind: ClassVar[Kind] = "fisher"


@dataclass(frozen=True)
class _Sampled:
    task: Task
    ids: Tensor
    kind: Kind
    solver: Solver

    def solve(self, model: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        retained = self.ids[~torch.isin(self.ids, torch.tensor(list(without), dtype=torch.long))]
        operator = curvature(self.task.with_model(model), model, block, retained, kind=self.kind)
        return self.solver.solve(operator, gradient, damping=self.task.weight_decay).x


@dataclass(frozen=True)
class OnCPUIfTooLarge:
    """The same curvature, with blocks that the device's memory is too small for solved on the CPU."""

    inverse: InverseCurvature

    @property
    def trace(self) -> float | None:
        """As ``trace_of``."""
        return trace_of(self.inverse)

    def solve(self, model: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        """As ``InverseCurvature.solve``."""
        try:
            return self.inverse.solve(model, block, gradient, without=without)
        except torch.OutOfMemoryError:
            warn(
                f"the block of {len(gradient):,} parameters does not fit on {gradient.device}; solving on the CPU.",
                MovedToCPUWarning,
            )
        on_cpu = self.inverse.solve(copy.deepcopy(model).cpu(), block, gradient.cpu(), without=without)
        return on_cpu.to(gradient.device)


CURVATURES: dict[str, Callable[[], Curvature]] = {"cached": Cached, "ggn": GGN, "hessian": Hessian, "fisher": Fisher}


def curvature_named(given: Curvature | str) -> Curvature:
    """A curvature, given as such or by its name."""
    return named(given, CURVATURES, "curvature")
