"""The objective of a linear layer on what it sees, in double precision: its Newton step, and how far a minimum can be.

With aᵢ what the layer sees of sample i, and a 1 for its bias, the objective is F(W) = Σ ℓᵢ(W aᵢ) / m + λ/2 ‖W‖². A
product of its Hessian with V is Σ ∇²ℓᵢ V aᵢ aᵢᵀ / m + λV: two multiplications of matrices, by which conjugate gradients
solve for the step. An inverse that is nearly right, from before some samples were taken out, leaves them little to do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor, nn

from excise._support.newton_bound import distance_to_minimum
from excise.privacy.sightings import Sighting, of_all_processes
from excise.task.task import Task

Floats = NDArray[np.float64]
Precondition = Callable[[Tensor], Tensor]
DENSE = 2000  # weights, up to which the inverse is that of the Hessian itself
TOLERANCES = (1e-4, 1e-6, 1e-9, 1e-12, 1e-14)  # of conjugate gradients, one after the other
CLOSE_ENOUGH = 0.02  # share of a step that its own error may be
MOST_ITERATIONS = 300


class Objective(Protocol):
    """F over the samples of a layer, held in memory (``HeadObjective``) or in a file (``StreamedObjective``)."""

    @property
    def mass(self) -> float:
        """What the sum of the losses is divided by."""
        ...

    @property
    def decay(self) -> float:
        """λ."""
        ...

    @property
    def bend(self) -> float | None:
        """R of ``newton_bound`` for rows of length 1; None where the loss has none."""
        ...

    @property
    def tilt(self) -> Tensor | None:
        """b, where ⟨b, W⟩ / m is added to the objective, as objective perturbation does."""
        ...

    @property
    def longest(self) -> float:
        """The length of the longest row."""
        ...

    def without(self, kept: Tensor, mass: float) -> Objective:
        """That of some of the samples."""
        ...

    def tilted(self, tilt: Tensor) -> Objective:
        """The same with another b."""
        ...

    def at(self, weights: Tensor) -> Near:
        """F near some weights, outputs × columns."""
        ...

    def pieces(self) -> Iterator[HeadObjective]:
        """What it is the sum of: objectives of samples that are in memory, as they come."""
        ...


@dataclass(frozen=True)
class HeadObjective:
    """F, on the CPU."""

    rows: Tensor
    """What the layer sees, one row a sample, with a 1 for a trained bias."""
    offset: Tensor
    """What its weights that are not trained add to the outputs."""
    losses: Callable[[Tensor, Tensor], Tensor]
    """Of outputs and targets: one for each sample."""
    targets: Tensor
    mass: float
    decay: float
    bend: float | None
    """R of ``newton_bound`` for rows of length 1; None where the loss has none."""
    tilt: Tensor | None = None
    """b, where ⟨b, W⟩ / m is added to the objective, as objective perturbation does."""

    @cached_property
    def longest(self) -> float:
        """The length of the longest row."""
        return float(self.rows.norm(dim=1).max())

    def without(self, kept: Tensor, mass: float) -> HeadObjective:
        """That of some of the samples."""
        return replace(self, rows=self.rows[kept], offset=self.offset[kept], targets=self.targets[kept], mass=mass)

    def tilted(self, tilt: Tensor) -> HeadObjective:
        """The same with another b."""
        return replace(self, tilt=tilt)

    def pieces(self) -> Iterator[HeadObjective]:
        """Itself."""
        yield self

    def at(self, weights: Tensor) -> Local:
        """F near some weights, outputs × columns."""
        with torch.enable_grad():
            outputs = (self.rows @ weights.T + self.offset).requires_grad_()
            losses = self.losses(outputs, self.targets)
            (slopes,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
        return Local(self, weights, outputs, slopes, float(losses.detach().sum()))


class Near(ABC):
    """F, its gradient and its Hessian at some weights."""

    weights: Tensor

    @property
    @abstractmethod
    def decay(self) -> float:
        """λ."""

    @property
    @abstractmethod
    def value(self) -> float:
        """F."""

    @property
    @abstractmethod
    def gradient(self) -> Tensor:
        """∇F."""

    @abstractmethod
    def product(self, along: Tensor) -> Tensor:
        """∇²F times a matrix."""

    @abstractmethod
    def inverse(self) -> Precondition:
        """An approximate (∇²F)⁻¹: the Hessian's own where that is small, else by Kronecker factors."""

    def least_step(self, precondition: Precondition) -> float:
        """A bound that the length of (∇²F)⁻¹ ∇F is not below, by one product: ⟨∇F, v⟩ ≤ ‖(∇²F)⁻¹ ∇F‖ ‖∇²F v‖."""
        along = precondition(precondition(self.gradient))
        return float((self.gradient * along).sum() / self.product(along).norm().clamp_min(1e-300))

    def step(self, precondition: Precondition, enough: Callable[[NewtonStep], bool] | None = None) -> NewtonStep:
        """(∇²F)⁻¹ ∇F: as exact as ``enough`` says, or so exact that its own error hardly counts."""
        gradient, shape, decay = self.gradient, self.weights.shape, self.decay
        size = gradient.numel()

        def as_operator(multiply: Callable[[Tensor], Tensor]) -> LinearOperator:
            def product(vector: Floats) -> Floats:
                given = torch.as_tensor(np.ascontiguousarray(vector)).reshape(shape)
                return multiply(given).reshape(-1).numpy()

            return LinearOperator((size, size), matvec=product, dtype=np.float64)

        hessian, inverse = as_operator(self.product), as_operator(precondition)
        wanted, found = gradient.reshape(-1).numpy(), np.zeros(size)
        for tolerance in TOLERANCES:
            found, _ = cg(hessian, wanted, found, rtol=tolerance, atol=0.0, maxiter=MOST_ITERATIONS, M=inverse)
            missed = float(np.linalg.norm(hessian @ found - wanted))
            step = NewtonStep(torch.as_tensor(found).reshape(shape), gradient, missed)
            exact = missed <= CLOSE_ENOUGH * decay * float(np.linalg.norm(found))
            if exact or (enough is not None and enough(step)):
                break
        return step


@dataclass(frozen=True)
class Local(Near):
    """The same by samples that are held in memory."""

    objective: HeadObjective
    weights: Tensor
    outputs: Tensor
    slopes: Tensor
    """∂ℓᵢ/∂zᵢ, with their graph."""
    total: float

    @property
    def decay(self) -> float:
        """λ."""
        return self.objective.decay

    @property
    def value(self) -> float:
        """F."""
        tilt = 0.0 if self.objective.tilt is None else float((self.objective.tilt * self.weights).sum())
        return (self.total + tilt) / self.objective.mass + self.objective.decay / 2 * float(self.weights.square().sum())

    @cached_property
    def gradient(self) -> Tensor:
        """∇F."""
        plain = self._gathered(self.slopes.detach()) + self.objective.decay * self.weights
        return plain if self.objective.tilt is None else plain + self.objective.tilt / self.objective.mass

    def product(self, along: Tensor) -> Tensor:
        """∇²F times a matrix."""
        return self._gathered(self._bent(self.objective.rows @ along.T)) + self.objective.decay * along

    def inverse(self) -> Precondition:
        """An approximate (∇²F)⁻¹: the Hessian's own where that is small, else by Kronecker factors."""
        return _by_cholesky(self) if self.weights.numel() <= DENSE else _by_kronecker(self)

    def curvatures(self) -> Tensor:
        """∇²ℓᵢ of every sample: samples × outputs × outputs."""
        columns = torch.eye(self.outputs.shape[1]).to(self.outputs)
        return torch.stack([self._bent(column.expand_as(self.outputs)) for column in columns], dim=2)

    def _bent(self, along: Tensor) -> Tensor:
        if not self.slopes.requires_grad:  # a loss of straight lines
            return torch.zeros_like(along)
        (bent,) = torch.autograd.grad(
            self.slopes, self.outputs, along, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return bent.detach()

    def _gathered(self, per_output: Tensor) -> Tensor:
        return per_output.T @ self.objective.rows / self.objective.mass


@dataclass(frozen=True)
class NewtonStep:
    """d with ∇²F d ≈ ∇F; weights less d are the next ones."""

    step: Tensor
    gradient: Tensor
    missed: float
    """‖∇²F d - ∇F‖."""

    def distance(self, objective: Objective, *, off: float = 0.0, hessian_off: float = 0.0) -> float:
        """A bound on the distance of the weights to the minimum; infinite where there is none.

        Args:
            objective: F.
            off: By how much the gradient can be off.
            hessian_off: By how much products with the Hessian can be, per length.
        """
        if objective.bend is None:
            return float("inf")
        length = float(self.step.norm())
        return distance_to_minimum(
            step=length,
            decrease=float((self.step * self.gradient).sum()) + off * length,
            residual=self.missed + off + hessian_off * length,
            gradient=float(self.gradient.norm()) + off,
            least_curvature=objective.decay,
            bend=objective.bend * objective.longest,
        )


def _by_cholesky(at: Local) -> Precondition:
    """The Hessian itself, inverted."""
    found = by_cholesky(hessian_without_decay(at), at.objective.decay, at.weights.shape)
    return _by_kronecker(at) if found is None else found


def hessian_without_decay(at: Local) -> Tensor:
    """∇² of the mean loss, as a matrix."""
    outputs, width = at.weights.shape
    hessian = torch.empty(outputs, width, outputs, width, dtype=torch.double)
    curvatures, rows = at.curvatures(), at.objective.rows
    for one in range(outputs):
        for other in range(one + 1):
            block = (rows * curvatures[:, one, other, None]).T @ rows / at.objective.mass
            hessian[one, :, other], hessian[other, :, one] = block, block.T
    return hessian.reshape(outputs * width, outputs * width)


def by_cholesky(matrix: Tensor, decay: float, shape: torch.Size) -> Precondition | None:
    """The inverse of a matrix plus λI, for weights of a shape; None where it is not positive definite."""
    matrix.diagonal().add_(decay)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return None if int(failed) else lambda along: torch.cholesky_solve(along.reshape(-1, 1), factor).reshape(shape)


def _by_kronecker(at: Local) -> Precondition:
    """B ⊗ A + λI, with B the mean of ∇²ℓᵢ and A that of aᵢaᵢᵀ, inverted by their eigenvectors."""
    rows, mass = at.objective.rows, at.objective.mass
    return by_kronecker(at.curvatures().sum(0) / mass, rows.T @ rows / len(rows), at.objective.decay)


def by_kronecker(outer_factor: Tensor, inner_factor: Tensor, decay: float) -> Precondition:
    """The inverse of B ⊗ A + λI."""
    outer, across = torch.linalg.eigh(outer_factor)
    inner, along_rows = torch.linalg.eigh(inner_factor)
    scale = 1 / (outer.clamp_min(0)[:, None] * inner.clamp_min(0) + decay)
    return lambda along: across @ (across.T @ along @ along_rows * scale) @ along_rows.T


def objective_of(task: Task, layer: nn.Linear, seen: Sequence[Sighting], mass: float) -> HeadObjective:
    """F of a layer by what it saw, one row of each sample; on the CPU, in double precision."""
    shape, loss = seen[0].outputs.shape[1:], task.sample_losses
    targets = torch.cat([one.targets for one in seen]).cpu()

    def losses(outputs: Tensor, told: Tensor) -> Tensor:
        return loss(outputs.reshape(len(outputs), *shape), told)

    return HeadObjective(
        rows=torch.cat([one.trained_rows[:, 0] for one in seen]).cpu(),
        offset=torch.cat([untrained(layer, one.rows[:, 0]) for one in seen]).cpu(),
        losses=losses,
        targets=targets.double() if targets.is_floating_point() else targets,
        mass=mass,
        decay=task.weight_decay,
        bend=bend_of(task.loss_module),
    )


class InMemory:
    """Collects what a layer sees, batch by batch, in memory."""

    def __init__(self, task: Task, layer: nn.Linear) -> None:
        self._task, self._layer = task, layer
        self._seen: list[Sighting] = []

    def add(self, seen: Sighting) -> None:
        """The next batch."""
        self._seen.append(seen.bare())

    def gather(self) -> None:
        """What the layer saw in other processes, too."""
        self._seen = of_all_processes(self._seen)

    def objective(self, mass: float) -> HeadObjective:
        """F by all that was seen."""
        return objective_of(self._task, self._layer, self._seen, mass)


def trained_weights(layer: nn.Linear) -> Tensor:
    """What of the layer is trained, as one matrix: outputs × inputs, and a column for the bias."""
    parts = [layer.weight] if layer.weight.requires_grad else []
    if layer.bias is not None and layer.bias.requires_grad:
        parts.append(layer.bias[:, None])
    return torch.cat([part.detach().double().cpu() for part in parts], dim=1)


def set_trained_weights(layer: nn.Linear, weights: Tensor) -> None:
    """Put such a matrix into the layer, rounded to its precision."""
    with torch.no_grad():
        if layer.weight.requires_grad:
            layer.weight.copy_(weights[:, : layer.in_features])
        if layer.bias is not None and layer.bias.requires_grad:
            layer.bias.copy_(weights[:, -1])


def untrained(layer: nn.Linear, rows: Tensor) -> Tensor:
    """What weights that are not trained add to the outputs."""
    found = torch.zeros(len(rows), layer.out_features).to(rows)
    if not layer.weight.requires_grad:
        found = found + rows @ layer.weight.detach().to(rows).T
    if layer.bias is not None and not layer.bias.requires_grad:
        found = found + layer.bias.detach().to(rows)
    return found


def bend_of(loss: Any) -> float | None:
    """By how much the loss's second derivatives can change with its outputs: |D³ℓ| ≤ R D²ℓ, per length of a row.

    Of a softmax it is the largest difference of two outputs' changes, of at most √2 times the length of all.
    """
    if type(loss) is nn.CrossEntropyLoss:
        return math.sqrt(2)
    if type(loss) is nn.BCEWithLogitsLoss:
        return 1.0
    return 0.0 if type(loss) is nn.MSELoss else None
