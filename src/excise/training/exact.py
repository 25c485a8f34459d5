"""Training of convex models to the exact minimum: what unlearning is measured against."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from excise._support import checks
from excise._support.progress import Bar
from excise.errors import InputError
from excise.task.batches import Batch, to_double
from excise.task.ids import Ids, positions
from excise.task.losses import of_torch
from excise.task.parameters import trained_parameters
from excise.task.task import Task
from excise.training.loop import Fitted


def exact_fit(
    task: Task,
    *,
    ids: Ids | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 200,
    double: bool = False,
    progress: bool = False,
) -> Fitted:
    """Train a copy of a convex model, such as logistic regression, to the exact minimum of the objective.

    Newton's method with a line search, in double precision, from the weights that ``task.model`` has, until
    ‖∇F(w)‖ ≤ tolerance · (1 + ‖w‖). The model runs in eval mode: no dropout, and batch normalisation with the
    statistics it has. The samples are held in memory, in double precision, or read anew in every pass where they are
    too many.

    Args:
        task: Model, data and objective; nothing in it is changed. That the objective is convex is not proved, only
            refused where its curvature is seen to be negative.
        ids: Positions in ``train_set`` of the samples to train on; None for all.
        tolerance: How small the gradient must become.
        max_iterations: The most Newton steps to take.
        double: Whether to return the model in double precision. Rounding to single precision moves each weight by
            about 1e-8 of its size, and the gradient accordingly.
        progress: Whether to show a bar, where it takes more than a second.

    Raises:
        InputError: The minimum was not reached; with weight decay 0 there may be none. (Weights that come so far out
            that the loss is 0 in double precision can't be told from a minimum, and are returned.)

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=1.0)
    >>> exact_fit(task).model.weight.item()  # mean target / (1 + λ)
    1.0
    """
    checks.positive(tolerance, "tolerance")
    max_iterations = checks.whole(max_iterations, "max_iterations")
    began = time.perf_counter()
    objective = _Objective(task, positions(ids, len(task.train_set)))
    losses: list[float] = []
    with Bar(enabled=progress) as bar:
        bar.start("Newton steps", max_iterations)
        for _ in _descent(objective, tolerance, max_iterations):
            losses.append(objective.loss)
            bar.advance(1)
    model = copy.deepcopy(task.model).eval()
    if double:
        model.double()
    with torch.no_grad():
        for name, weight in trained_parameters(model).items():
            weight.copy_(objective.model.get_parameter(name))
    return Fitted(model, tuple(losses), time.perf_counter() - began)


class _Objective:
    """F(w) over fixed samples in double precision, with its derivatives."""

    def __init__(self, task: Task, ids: Tensor) -> None:
        self.model = copy.deepcopy(task.model).double().eval()
        self.decay, self.loss = task.weight_decay, math.nan
        self._task = task.with_model(self.model)
        if isinstance(task.loss, nn.Module) and not of_torch(task.loss):  # which may hold weights of its own
            self._task = replace(task, model=self.model, loss=copy.deepcopy(task.loss).double())
        self._parameters = list(trained_parameters(self.model).values())
        self._ids = ids
        self._kept: list[Batch] | None = None
        if task.fits_into_memory(len(ids)):
            self._kept = [to_double(batch) for batch in self._task.batches(ids, 1024)]
        self._count = task.mass(ids)
        self.start = parameters_to_vector(self._parameters).detach()

    def value(self, weights: Tensor) -> float:
        """F(w); the model has these weights from now on, and ``loss`` is their mean loss."""
        vector_to_parameters(weights, self._parameters)
        with torch.no_grad():
            total = sum(float(self._task.losses(self.model, batch).sum()) for batch in self._batches())
        self.loss = total / self._count
        return self.loss + self.decay / 2 * float(weights @ weights)

    def derivatives(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """∇F at the model's weights, and the product of a vector with ∇²F there."""
        if self._kept is None:
            return sum(self._gradients(create_graph=False), self._of_decay()).detach(), self._product
        with torch.enable_grad():
            gradient = sum(self._gradients(create_graph=True), self._of_decay())
        return gradient.detach(), lambda vector: self._flat_grad(gradient, vector, retain_graph=True)

    def _product(self, vector: Tensor) -> Tensor:
        """∇²F times a vector, by a pass over the samples, of which no more than a batch is held."""
        total = self.decay * vector
        for gradient in self._gradients(create_graph=True):
            if gradient.requires_grad:  # which that of a loss of straight lines does not
                total = total + self._flat_grad(gradient, vector)
        return total

    def _gradients(self, *, create_graph: bool) -> Iterator[Tensor]:
        """What each batch adds to ∇F."""
        for batch in self._batches():
            with torch.enable_grad():
                loss = self._task.losses(self.model, batch).sum() / self._count
                gradient = self._flat_grad(loss, create_graph=create_graph)
            yield gradient

    def _of_decay(self) -> Tensor:
        return self.decay * parameters_to_vector(self._parameters)

    def _batches(self) -> Iterable[Batch]:
        """The samples in double precision: kept where they fit into memory, else read anew."""
        if self._kept is not None:
            return self._kept
        return map(to_double, self._task.batches(self._ids, self._task.batch_size_within_memory(1024)))

    def _flat_grad(self, of: Tensor, cotangent: Tensor | None = None, **options: bool) -> Tensor:
        parts = torch.autograd.grad(of, self._parameters, cotangent, materialize_grads=True, **options)
        return torch.cat([part.reshape(-1) for part in parts])


def _descent(objective: _Objective, tolerance: float, max_iterations: int) -> Iterator[None]:
    """Newton's method with inexact steps; stops after each, and ends at the minimum."""
    weights = objective.start
    value = objective.value(weights)
    remedy = "raise tolerance or max_iterations, or bring the inputs to a common scale"
    for _ in range(max_iterations + 1):
        yield
        gradient, product = objective.derivatives()
        norm, scale = float(gradient.norm()), 1 + float(weights.norm())
        if not math.isfinite(value + norm):
            raise InputError(f"the loss is {value} and its gradient {norm}; check train_set and the model for NaN.")
        if norm <= tolerance * scale and objective.decay > 0:
            return
        # the accuracy that makes the steps converge faster than linearly
        step = _newton_step(gradient, product, accuracy=min(0.1, math.sqrt(norm / scale)))
        if step is None:
            remedy = "its curvature is negative, so it is not convex: use fit"
            break
        if norm <= tolerance * scale:
            # without weight decay a small gradient proves nothing: on separable data it vanishes far out
            if float(step.norm()) <= 1e-6 * scale:
                return
            if norm <= 1e-3 * tolerance * scale:
                break
        found = _line_search(objective, weights, value, step, float(gradient @ step))
        if found is None:
            break
        weights, value = found
    if objective.decay == 0:
        remedy = "with weight_decay 0 there may be none, as for separable data: set weight_decay above 0"
    raise InputError(
        f"exact_fit found no minimum of the objective: the gradient norm is {norm:.2g} (tolerance={tolerance:g} times "
        f"1 + ‖w‖ = {scale:.3g}); {remedy}."
    )


def _newton_step(gradient: Tensor, product: Callable[[Tensor], Tensor], accuracy: float) -> Tensor | None:
    """The d with ∇²F d = -∇F by conjugate gradients, up to this share of ∇F; None if ∇²F is not positive."""
    step, residual = torch.zeros_like(gradient), -gradient
    direction, square = residual, float(gradient @ gradient)
    goal, steepest = accuracy**2 * square, 0.0
    for _ in range(min(2 * len(gradient), 1000)):
        if square <= goal:
            break
        bent = product(direction)
        length, curvature = float(direction @ direction), float(direction @ bent)
        steepest = max(steepest, abs(curvature) / length)
        if curvature < -1e-8 * steepest * length:
            return None
        if curvature <= 1e-16 * steepest * length:
            break  # flat but for rounding: nothing to gain along it
        step = step + square / curvature * direction
        residual = residual - square / curvature * bent
        square, previous = float(residual @ residual), square
        direction = residual + square / previous * direction
    return step


def _line_search(
    objective: _Objective, weights: Tensor, value: float, step: Tensor, slope: float
) -> tuple[Tensor, float] | None:
    """Halve the step until F falls in proportion; near the minimum, where F only shows rounding, take it whole."""
    rounding = 1e-14 * (1 + abs(value))
    for halvings in range(50):
        share = 0.5**halvings
        trial = weights + share * step
        reached = objective.value(trial)
        if reached <= value + 1e-4 * share * slope + rounding:
            return trial, reached
    return None
