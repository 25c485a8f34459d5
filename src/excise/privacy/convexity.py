"""Is the objective convex in what is trained? Proven from the model and from every sample, or not claimed.

Certificates rest on it: without convexity a small gradient says nothing about the distance to a minimum. It is claimed
where a plain linear layer is all that is trained, its outputs are the model's, its inputs don't depend on its weights
nor on the other samples of a batch, and the loss is one that is known to be convex in the outputs. Whether that is so
is looked up on all the samples, in the pass that computes the gradient, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from excise import processes
from excise.privacy.aliases import doubt_of_aliases
from excise.privacy.head_objective import HeadObjective, objective_of, trained_weights
from excise.privacy.heads import doubt_of_loss, doubt_of_model, doubt_of_values, linear_head, with_other_weights
from excise.privacy.rounding import Margin, has_kinks, smoothness
from excise.privacy.sightings import Head, Sighting, disagreement, of_all_processes, seen_again, sight
from excise.task import objective
from excise.task.parameters import norm
from excise.task.task import Task, evaluating

MOST_KEPT = 60_000_000  # values that the layer sees, in double precision


@dataclass(frozen=True)
class ResidualGradient:
    """The gradient of the objective over the retained samples, and what it may be used for."""

    norm: float
    why_not_convex: str | None
    """Why the objective is not known to be convex; None where it is."""
    margin: float = 0.0
    """By how much the norm can be larger, for rounding: see ``excise.privacy.rounding``."""
    left_by_rounding: float = 0.0
    """What norm the exact minimum can have, once its weights are rounded to those of the model's precision."""
    vouched: bool = False
    """Whether convexity is what the task says, rather than proven."""
    features: bool = False
    """Whether the model has parts that are not trained now, but may have been on samples that are gone."""
    distance: float | None = None
    """A bound on the distance to the minimum by the curvature there, rounding included; None where there is none."""

    @property
    def convex(self) -> bool:
        """Whether a small gradient means that a minimum is near."""
        return self.why_not_convex is None


def residual_gradient(task: Task, model: nn.Module, residual: Tensor) -> ResidualGradient:
    """‖∇F‖ over the samples by one pass (by two where convexity has to be proven), and whether F is convex."""
    with evaluating(model):
        doubt = "the task says so" if task.convex is not None else why_not_linear(task, model)
        found = _by_linear_layer(task, model, residual) if doubt is None else doubt
        if isinstance(found, str):
            plain = norm(objective.objective_gradient(task, model, residual))
            found = ResidualGradient(plain, None if task.convex else found, vouched=bool(task.convex))
    return replace(found, features=task.features != "fixed" and has_features(model))


def why_not_linear(task: Task, model: nn.Module) -> str | None:
    """What of the model or the loss alone speaks against convexity; None for nothing."""
    layer = linear_head(model)
    if isinstance(layer, str):
        return layer
    return doubt_of_model(model) or doubt_of_loss(task.loss_module) or doubt_of_aliases(task, model, layer.parameters())


def has_features(model: nn.Module) -> bool:
    """Whether the model has parts that are not trained now, and may have been on other samples."""
    frozen = any(not weight.requires_grad for weight in model.parameters())
    return frozen or any(buffer.is_floating_point() for buffer in model.buffers())


def _by_linear_layer(task: Task, model: nn.Module, ids: Tensor) -> ResidualGradient | str:
    """‖∇F‖ in double precision from what the layer sees, or what is not as it should be."""
    layer, other = linear_head(model), linear_head(moved := with_other_weights(model))
    if isinstance(layer, str) or isinstance(other, str):
        return str(layer)
    trained = {name: one.detach().clone() for name, one in layer.named_parameters() if one.requires_grad}
    fresh = _made_anew(task)
    beta = smoothness(task.loss_module, layer.out_features, fresh.loss_scale)
    margin = Margin(beta, has_kinks(task.loss_module), float(layer.weight.detach().double().norm()))
    weight = torch.zeros_like(layer.weight, dtype=torch.float64)
    bias = torch.zeros(layer.out_features, dtype=torch.float64, device=weight.device)
    kept: list[Sighting] | None = []
    doubt = ""
    for found in _sightings(task, fresh, Head(model, layer), Head(moved, other), ids):
        if isinstance(found, str):
            doubt = found
            break
        seen, slopes = found.rows, found.slopes(task)
        if not slopes.isfinite().all():
            doubt = "the gradient of a sample is not finite"
            break
        weight += slopes.flatten(0, 1).T @ seen.flatten(0, 1)
        bias += slopes.sum((0, 1))
        kept = _also(kept, found)
        gaps = found.gaps(task) if margin.kinks else None
        margin.add(found.trained_rows, slopes, found.reach, gaps, found.moved, found.shares(task))
    if doubts := [one for one in processes.gathered(doubt, "doubts of convexity") if one]:
        return doubts[0]
    if processes.is_shared(len(ids)):
        weight, bias = processes.total([weight, bias], "gradient of the last layer")
        margin.of_all_processes()
        kept = _of_all_processes(kept)
    now = {name: one for name, one in layer.named_parameters() if one.requires_grad}
    if now.keys() != trained.keys() or not all(torch.equal(one, now[name]) for name, one in trained.items()):
        return "the model changes its weights, or which of them are trained, while it is used"
    sums = {"weight": weight, "bias": bias}
    mass = fresh.mass(ids)  # which retraining on these samples divides by
    if not mass > 0:
        return "no retained sample has a label, or a weight"
    parts = [(sums[name] / mass, one.double()) for name, one in trained.items()]
    flat = torch.cat([one.flatten() for _, one in parts])
    total = torch.cat([(mean + task.weight_decay * one).flatten() for mean, one in parts])
    size = float(total.norm())
    off = margin.of_gradient(size, task.weight_decay, flat, mass)
    precision = torch.finfo(layer.weight.dtype).eps
    rounded = margin.of_rounded_weights(precision, task.weight_decay, flat, mass)
    distance = None
    if kept and task.weight_decay > 0:
        hessian_off = margin.of_hessian(task.weight_decay, len(flat), mass)
        distance = _distance(objective_of(fresh, layer, kept, mass), layer, off, hessian_off)
    return ResidualGradient(size, None, off, rounded, distance=distance)


def _also(kept: list[Sighting] | None, found: Sighting) -> list[Sighting] | None:
    """With one more, where all of them fit into memory and every sample has one row; else None."""
    if kept is None or found.rows.shape[1] != 1 or (len(kept) + 1) * found.rows.numel() > MOST_KEPT:
        return None
    kept.append(found.bare())
    return kept


def _of_all_processes(kept: list[Sighting] | None) -> list[Sighting] | None:
    """Those of other processes too, where all of them fit into memory."""
    values = processes.gathered(None if kept is None else sum(one.rows.numel() for one in kept), "values that are kept")
    known = [one for one in values if one is not None]
    if kept is None or len(known) < len(values) or sum(known) > MOST_KEPT:
        return None
    return of_all_processes(kept)


def _distance(objective: HeadObjective, layer: nn.Linear, off: float, hessian_off: float) -> float | None:
    """A bound on the distance to the minimum, by the Newton step that leads there."""
    if objective.bend is None:
        return None
    local = objective.at(trained_weights(layer))
    found = local.step(local.inverse()).distance(objective, off=off, hessian_off=hessian_off)
    return found if math.isfinite(found) else None


def _made_anew(task: Task) -> Task:
    """The task as it would be made now, from the loss as it is now."""
    fresh = replace(task)
    if "targets" in vars(task):
        vars(fresh)["targets"] = task.targets
    return fresh


def _sightings(task: Task, fresh: Task, head: Head, moved: Head, ids: Tensor) -> Iterator[Sighting | str]:
    """What the layer saw, batch by batch, or what speaks against convexity."""
    size = task.batch_size_within_memory(256)
    mine = processes.share_of(ids) if processes.is_shared(len(ids)) else ids
    for places in mine.split(size):
        batch = task.batch(places)
        first, elsewhere = sight(task, head, batch), sight(task, moved, batch)
        doubt = disagreement(task, first, elsewhere) or doubt_of_values(task, fresh, first, elsewhere)
        if doubt is not None:
            yield doubt
            return
        yield seen_again(task, head, places, ids, first)
