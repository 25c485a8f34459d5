"""The objective of a linear layer on what it sees of more samples than memory can hold.

What the layer sees lies in a temporary file, in the precision that it has. Every sum over samples (gradient, product
with the Hessian, Kronecker factors) goes through the file, and holds a piece of it in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from excise._support.spilling import Spilled
from excise.privacy.head_objective import (
    DENSE,
    HeadObjective,
    Local,
    Near,
    Precondition,
    bend_of,
    by_cholesky,
    by_kronecker,
    hessian_without_decay,
    untrained,
)
from excise.privacy.sightings import Sighting
from excise.task.task import Task

PIECE = 4_000_000  # values of what the layer sees that are held in double precision: 32 MB


@dataclass(frozen=True, eq=False)
class SeenInFile:
    """What a layer saw of samples, one row each, as they come; and their targets."""

    rows: Spilled
    targets: Tensor
    longest: float


@dataclass(frozen=True, eq=False)
class StreamedObjective:
    """As ``HeadObjective``, for as many samples as a file can hold."""

    seen: SeenInFile
    layer: nn.Linear
    """A copy, of which only weights that are not trained count."""
    losses: Callable[[Tensor, Tensor], Tensor]
    mass: float
    decay: float
    bend: float | None
    kept: Tensor
    """Of which samples it is the objective: true or false for each that was seen."""
    tilt: Tensor | None = None

    @property
    def longest(self) -> float:
        """The length of the longest row."""
        return self.seen.longest

    def without(self, kept: Tensor, mass: float) -> StreamedObjective:
        """That of some of the samples."""
        still = self.kept.clone()
        still[self.kept] = kept
        return replace(self, kept=still, mass=mass)

    def tilted(self, tilt: Tensor) -> StreamedObjective:
        """The same with another b."""
        return replace(self, tilt=tilt)

    def at(self, weights: Tensor) -> StreamedLocal:
        """F near some weights, outputs × columns."""
        return StreamedLocal(self, weights)

    def pieces(self) -> Iterator[HeadObjective]:
        """The objective of one piece after the other, without the weight decay; divided by the mass of all."""
        table, trained = self.seen.rows.tensor, self.layer.weight.requires_grad
        bias = self.layer.bias is not None and self.layer.bias.requires_grad
        for low in range(0, len(table), max(1, PIECE // table.shape[1])):
            some = slice(low, low + max(1, PIECE // table.shape[1]))
            kept = self.kept[some]
            if not bool(kept.any()):
                continue
            rows = table[some][kept].double()
            own = rows if trained else rows[:, :0]
            targets = self.seen.targets[some][kept]
            yield HeadObjective(
                rows=torch.cat([own, torch.ones_like(rows[:, :1])], 1) if bias else own,
                offset=untrained(self.layer, rows),
                losses=self.losses,
                targets=targets.double() if targets.is_floating_point() else targets,
                mass=self.mass,
                decay=0.0,
                bend=self.bend,
            )
            self.seen.rows.give_back()


class StreamedLocal(Near):
    """F, its gradient and its Hessian at some weights, each by a pass over the file."""

    def __init__(self, objective: StreamedObjective, weights: Tensor) -> None:
        self.objective, self.weights = objective, weights

    def _near(self) -> Iterator[Local]:
        for piece in self.objective.pieces():
            yield piece.at(self.weights)

    @property
    def decay(self) -> float:
        """λ."""
        return self.objective.decay

    @cached_property
    def _value_and_gradient(self) -> tuple[float, Tensor]:
        """In one pass, since both are asked for."""
        tilt = torch.zeros_like(self.weights) if self.objective.tilt is None else self.objective.tilt
        total = float((tilt * self.weights).sum())
        gradient = self.decay * self.weights + tilt / self.objective.mass
        for local in self._near():
            total, gradient = total + local.total, gradient + local.gradient
        return total / self.objective.mass + self.decay / 2 * float(self.weights.square().sum()), gradient

    @property
    def value(self) -> float:
        """F."""
        return self._value_and_gradient[0]

    @property
    def gradient(self) -> Tensor:
        """∇F."""
        return self._value_and_gradient[1]

    def product(self, along: Tensor) -> Tensor:
        """∇²F times a matrix."""
        total = self.decay * along
        for local in self._near():
            total = total + local.product(along)
        return total

    def inverse(self) -> Precondition:
        """An approximate (∇²F)⁻¹, as that of ``Local``."""
        decay, shape = self.decay, self.weights.shape
        if self.weights.numel() <= DENSE:
            hessian = torch.zeros(self.weights.numel(), self.weights.numel(), dtype=torch.double)
            for local in self._near():
                hessian += hessian_without_decay(local)
            found = by_cholesky(hessian, decay, shape)
            if found is not None:
                return found
        outer = torch.zeros(shape[0], shape[0], dtype=torch.double)
        inner = torch.zeros(shape[1], shape[1], dtype=torch.double)
        for local in self._near():
            outer += local.curvatures().sum(0)
            inner += local.objective.rows.T @ local.objective.rows
        return by_kronecker(outer / self.objective.mass, inner / int(self.objective.kept.sum()), decay)


class InFile:
    """Puts what a layer sees into a file, batch by batch."""

    def __init__(self, task: Task, layer: nn.Linear, count: int) -> None:
        self._task, self._layer, self._filled = task, layer, 0
        self._rows = Spilled((count, layer.in_features), _stored(layer.weight.dtype))
        self._targets: list[Tensor] = []
        self._longest, self._shape = 0.0, torch.Size()

    def add(self, seen: Sighting) -> None:
        """The next batch, of one row for each sample."""
        rows = seen.inputs.reshape(seen.samples, -1)
        self._rows.tensor[self._filled : self._filled + len(rows)] = rows.cpu()
        self._filled += len(rows)
        self._targets.append(seen.targets.cpu())
        self._longest = max(self._longest, float(seen.trained_rows[:, 0].norm(dim=1).max()))
        self._shape = seen.outputs.shape[1:]
        if self._filled * self._layer.in_features % PIECE < rows.numel():
            self._rows.give_back()

    def objective(self, mass: float) -> StreamedObjective:
        """F by all that was seen."""
        shape, loss = self._shape, self._task.sample_losses

        def losses(outputs: Tensor, told: Tensor) -> Tensor:
            return loss(outputs.reshape(len(outputs), *shape), told)

        return StreamedObjective(
            seen=SeenInFile(self._rows, torch.cat(self._targets), self._longest),
            layer=self._layer,
            losses=losses,
            mass=mass,
            decay=self._task.weight_decay,
            bend=bend_of(self._task.loss_module),
            kept=torch.ones(self._filled, dtype=torch.bool),
        )


def _stored(precision: torch.dtype) -> torch.dtype:
    return torch.float64 if precision == torch.float64 else torch.float32
