"""Forgetting from a model that is sharded by FSDP2: the Newton step, layer by layer, on the part that each process has.

The model can't be copied, so it is changed itself, and put back after an error. Never is more than a layer of it in one
place: the process that looks after a layer gets its gradient, solves, and sends the step to all, each of which changes
its own part of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn

from excise import processes
from excise.curvature import kfac
from excise.curvature.last_layer import trains_only_last_layer
from excise.curvature.sharded import ShardedCurvature, sharded_cache
from excise.curvature.strategies import LEAST_DAMPING, Cached
from excise.errors import NotYetSupportedError
from excise.privacy.certificate import Certificate, certify
from excise.slices.slices import Block
from excise.task.sharded import (
    backwards,
    gradient_norm,
    own_part,
    part_like,
    require_one_axis,
    resharded,
    restored_after_error,
    set_parts,
    shapes_of,
    whole,
    without_gradients,
)
from excise.task.task import Task, evaluating
from excise.unlearning.auto import Auto
from excise.unlearning.convergence import nothing_changed, require_finite_weights
from excise.unlearning.method import Applied, Method, Removal, Workspace
from excise.unlearning.selection import LargestChange
from excise.unlearning.step import MOST_TRIES, Step, nothing_forgotten, shorter, why_shorter

REMEDY = "take Step() (--method step) with the kept curvature, or work with a model that is not sharded"


class Shards:
    """Each process has a part of every parameter."""

    def __init__(self) -> None:
        self._start: dict[str, Tensor] = {}
        self._said = ""

    def method(self, given: Method) -> Method:
        """A Newton step with kept curvature; others need whole copies of the model."""
        if isinstance(given, Auto):
            self._said = "method step was chosen, since the model is sharded"
            return Step()
        if type(given) is not Step or not isinstance(given.curvature, Cached):
            name = getattr(given, "name", type(given).__name__)
            of = f" with the curvature {type(given.curvature).__name__}" if isinstance(given, Step) else ""
            raise NotYetSupportedError(
                f"method {name}{of} needs copies of the whole model, and this one is sharded; {REMEDY}."
            )
        if isinstance(given.selection, LargestChange):
            raise NotYetSupportedError(
                "selection 'largest-change' needs the step of all slices in one place, and the model is sharded; take "
                "another one, such as 'per-layer' or 'all'."
            )
        return given

    def working(self) -> AbstractContextManager[None]:
        """All processes run the model on the same samples."""
        return processes.in_step()

    def prepare(self, method: Method, workspace: Workspace, model: nn.Module, ids: Tensor) -> ShardedCurvature:
        """The kept curvature, of which each process has the part of some layers."""
        require_one_axis(model)
        step, task, slices = _step(method), workspace.task, workspace.slices
        curvature = step.curvature
        if not isinstance(curvature, Cached) or not kfac.can_cache(task, model, slices):
            raise NotYetSupportedError(f"the model's outputs are not one row a sample, and it is sharded; {REMEDY}.")
        if trains_only_last_layer(task, model, slices):
            raise NotYetSupportedError(
                "only the last layer is trained, so that nothing has to be sharded to forget from it: take head(task) "
                "of a model that is not sharded, which is exact."
            )
        return sharded_cache(
            task,
            model,
            slices,
            ids,
            rank=curvature.rank,
            rows=curvature.rows,
            exact=curvature.exact,
            damping=max(task.weight_decay, LEAST_DAMPING),
            seed=workspace.seed,
        )

    @contextmanager
    def changing(self, model: nn.Module) -> Iterator[nn.Module]:
        """The model itself, put back after an error."""
        with restored_after_error(model) as self._start:
            yield model
        self._start = {}

    def apply(
        self, method: Method, workspace: Workspace, prepared: ShardedCurvature, model: nn.Module, removal: Removal
    ) -> Applied:
        """Take the step, or as much of it as the guard allows."""
        step, retained = _step(method), removal.retained
        picked = step.selection.select(workspace, _NoCurvature(), model, removal)
        block = workspace.slices.block(picked.numbers)
        removal.stages.begin("taking the step")
        matrices, lengths = _gradients(workspace.task, model, block, prepared, removal)
        solved = prepared.solve(block, matrices, without=removal.gone)
        change, length = _spread(block, prepared, {at: step.size * one for at, one in solved.items()}, model)
        share = 1.0 if retained.guard is None or not length else min(1.0, lengths / length)
        guarded = False
        for _ in range(MOST_TRIES):
            _move(model, self._start, change, share)
            losses = retained.of_each(model)
            loss = retained.mean(losses)
            if loss <= retained.limit and retained.keeps_answers(model):
                words = "; ".join(filter(None, [self._said, why_shorter(share, guarded)]))
                return Applied(set(picked.numbers), picked.scores, share, words, losses)
            guarded = True
            share *= shorter(retained.limit - retained.before, loss - retained.before, share)
        raise nothing_forgotten(workspace, picked, removal, "step")

    def changed(self, before: nn.Module, after: nn.Module, method: str, slices: tuple[str, ...]) -> int:  # noqa: ARG002
        """Part by part."""
        weights = {name: own_part(weight) for name, weight in resharded(after).named_parameters()}
        wrong = [name for name in self._start if not bool(weights[name].isfinite().all())]
        count = sum(int((old != weights[name]).sum()) for name, old in self._start.items())
        with processes.across():
            found = processes.gathered((wrong, count), "weights that changed")
        require_finite_weights([name for names, _ in found for name in names], method, slices)
        changed = sum(number for _, number in found)
        if changed == 0:
            raise nothing_changed(method, slices)
        return changed

    def finish(self, model: nn.Module) -> None:
        """No process has what another has."""
        without_gradients(model)  # it is handed out

    def certified(self, task: Task, model: nn.Module, residual: Tensor) -> Certificate:
        """By a pass over the retained samples, of which each process adds up the gradient of its part."""
        with processes.in_step(), evaluating(model):
            norm = gradient_norm(task, model, residual)
        why = None if task.convex else "it is a network whose weights are sharded"
        return certify(norm, task.weight_decay, convex=bool(task.convex), vouched=bool(task.convex), why_not=why)


def _step(method: Method) -> Step:
    if not isinstance(method, Step):
        raise NotYetSupportedError(f"the model is sharded; {REMEDY}.")
    return method


class _NoCurvature:
    """For selections of a user's own: those here go by activations alone."""

    def solve(self, *_: object, **__: object) -> NoReturn:
        raise NotYetSupportedError(
            "the selection asks for a step of the whole model, which is sharded; take another one, such as 'per-layer' "
            "or 'all'."
        )


def _gradients(
    task: Task, model: nn.Module, block: Block, prepared: ShardedCurvature, removal: Removal
) -> tuple[dict[int, Tensor], float]:
    """Σ (∇ℓ + λw) / n of this process's layers, units × width, and the length of all the block's weights."""
    backwards(task, model, removal.ids)
    share, left = task.mass(removal.ids) * task.weight_decay, len(removal.residual)
    weights = dict(resharded(model).named_parameters())
    found, squares = {}, 0.0
    for chosen in block.chosen:
        own = chosen.layer in prepared.own.numbers
        now, downhill = {}, {}
        for rows in chosen.parts:
            weight = weights[rows.parameter]
            now[rows.parameter] = value = whole(weight)
            data = torch.zeros_like(value) if weight.grad is None else whole(weight.grad)
            downhill[rows.parameter] = (data + share * value if bool(data.any()) else data) / left
        if own:
            found[chosen.layer] = chosen.take(downhill)
            squares += float(chosen.take(now).double().square().sum())
    without_gradients(model)
    with processes.across():
        (total,) = processes.total([torch.tensor([squares], dtype=torch.double)], "length of the weights")
    return found, math.sqrt(float(total))


def _spread(
    block: Block, prepared: ShardedCurvature, solved: dict[int, Tensor], model: nn.Module
) -> tuple[dict[str, Tensor], float]:
    """Of the step what belongs to this process, by parameter, from the layers of all; and the length of the step."""
    weights, shapes = dict(resharded(model).named_parameters()), shapes_of(model)
    change: dict[str, Tensor] = {}
    squares = 0.0
    for chosen in block.chosen:
        like = {rows.parameter: weights[rows.parameter] for rows in chosen.parts}
        kind = own_part(like[chosen.parts[0].parameter])
        matrix = solved.pop(chosen.layer, None)
        if matrix is None:
            matrix = kind.new_empty(chosen.shape(shapes))
        with processes.across():
            owner = prepared.own.owners[chosen.layer]
            processes.from_first([matrix], f"the step of layer {chosen.layer}", first=owner)
        squares += float(matrix.double().square().sum())
        full = {name: kind.new_zeros(weight.shape) for name, weight in like.items()}
        for rows, values in zip(chosen.parts, matrix.split(chosen.widths(shapes), dim=1), strict=True):
            rows.put(full[rows.parameter], chosen.units, values)
        for name, weight in like.items():
            part = part_like(full[name], weight)
            change[name] = part + change[name] if name in change else part.clone()  # layers may share a parameter
    return change, math.sqrt(squares)


def _move(model: nn.Module, start: dict[str, Tensor], change: dict[str, Tensor], share: float) -> None:
    """Set this process's parts to where they started, plus a share of the step."""
    set_parts(model, {name: one + share * change[name] if name in change else one for name, one in start.items()})
