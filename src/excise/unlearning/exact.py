"""Exact forgetting of convex models: Newton steps until a certificate says that next to nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.checks import positive, require, whole
from excise.errors import InputError, NeverSupportedError
from excise.privacy.convexity import MOST_KEPT, why_not_linear
from excise.privacy.head_objective import (
    InMemory,
    Near,
    NewtonStep,
    Objective,
    Precondition,
    set_trained_weights,
    trained_weights,
)
from excise.privacy.heads import head_of, linear_head
from excise.privacy.sightings import Head, disagreement, sight
from excise.privacy.streamed_objective import InFile
from excise.task.parameters import trainable
from excise.task.task import Task, evaluating
from excise.training.exact import exact_fit
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.selection import slice_norms

SUFFICIENT = 1e-4  # share of the expected fall of the objective that a step has to bring (Armijo's rule)
SHORTEST = 1e-8  # share of a step that is still tried
DIGITS = 1e-15  # of the objective that rounding leaves
INEXACT = 1e-3  # share of a gradient that the solve for a step may leave to the next one
SEVERAL_ROWS = "the layer sees several rows of a sample"  # such as one of each word


@dataclass(frozen=True)
class Kept:
    """What the layer that is trained sees of all samples, and the inverse of the curvature."""

    ids: Tensor
    objective: Objective
    inverse: Precondition


@register("exact")
@dataclass(frozen=True)
class Exact:
    """Newton steps on the objective without the samples, in double precision, until the weights are certified.

    For convex models: a linear layer with a convex loss, on inputs or on frozen features, which are computed once for
    all requests. It ends where the bound on the distance to the retrained weights is ``share`` of the distance moved,
    or ``bound``, if that is given. A model of another kind that its task says is convex is retrained from where it is,
    by Newton's method.
    """

    share: float = 1e-4
    """Of the distance to the retrained weights that may be left."""
    bound: float | None = None
    """The distance itself that may be left, instead."""
    steps: int = 50
    """At most."""

    heeds_guard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.share, "share")
        require(self.share < 1, "share", self.share, "below 1")
        if self.bound is not None:
            positive(self.bound, "bound")
        whole(self.steps, "steps")

    def check(self, workspace: Workspace) -> None:
        """Refuse what is not convex, or has no single minimum."""
        task = workspace.task
        if not task.convex and (why := why_not_head(task)) is not None:
            raise _not_convex(why)
        if not task.weight_decay > 0:
            raise InputError(
                "weight_decay must be above 0 for method exact, not 0: without it there may be no minimum, or many; "
                "pass that of the training, or take Step()."
            )

    def samples(self, workspace: Workspace, model: nn.Module) -> int:  # noqa: ARG002
        """All of them: what the layer sees of each is kept."""
        return len(workspace.task.train_set)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> Kept | None:
        """What the layer sees of the samples, and the inverse of the curvature; None for models of another kind."""
        task, layer = workspace.task, linear_head(model)
        if isinstance(layer, str) or why_not_linear(task, model) is not None:
            return None
        in_file = not fits_into_memory(task)
        shared = processes.is_shared(len(ids)) and not in_file  # every process has a file of its own
        ids = ids.sort().values if in_file else ids  # in the order in which they lie on the disk
        seen = InFile(task, layer, len(ids)) if in_file else InMemory(task, layer)
        own = _looked_at(task, Head(model, layer), processes.share_of(ids) if shared else ids, seen)
        found = [why for why in processes.gathered(own, "doubts of convexity") if why]
        if SEVERAL_ROWS in found or (found and task.convex):
            return None
        if found:
            raise _not_convex(found[0])
        if shared and isinstance(seen, InMemory):
            seen.gather()
        objective: Objective = seen.objective(task.mass(ids))
        return Kept(ids, objective, objective.at(trained_weights(layer)).inverse())

    def apply(self, workspace: Workspace, prepared: Kept | None, model: nn.Module, removal: Removal) -> Applied:
        """Go to the minimum without the samples."""
        removal.stages.begin("taking Newton steps")
        before = {name: weight.detach().clone() for name, weight in trainable(model).items()}
        if prepared is None:
            found = exact_fit(workspace.task.with_model(model), ids=removal.residual).model
            model.load_state_dict(found.state_dict())
            words = "the weights are those of the minimum, found by Newton's method"
        else:
            words = self._minimise(workspace.task, prepared, model, removal)
        moved = {name: weight.detach() - before[name] for name, weight in trainable(model).items()}
        norms = slice_norms(workspace.known_slices, moved) if workspace.has_slices else ()
        carried = {number: float(size) for number, size in enumerate(norms) if size > 0}
        return Applied(set(carried), carried, 1.0, words)

    def _minimise(self, task: Task, kept: Kept, model: nn.Module, removal: Removal) -> str:
        """Put the minimum into the model's layer, and say how near to it that is."""
        layer = head_of(model)
        left = ~torch.isin(kept.ids, removal.all_gone)
        objective = kept.objective.without(left, task.mass(kept.ids[left]))
        start = trained_weights(layer)
        now = Certified(start, float("inf"))
        for now in newton(objective, start, kept.inverse, self.steps, self._allowed):
            if now.bound <= self._allowed(now.moved, now.bound):
                break
        set_trained_weights(layer, now.weights)
        rounding = float((trained_weights(layer) - now.weights).norm())
        return _said(now, rounding, layer.weight.dtype)

    def _allowed(self, moved: float, bound: float) -> float:
        """How far the minimum may be, where weights have moved so far, and their bound is this."""
        return self.bound or self.share * max(0.0, moved - bound)


def _looked_at(task: Task, head: Head, ids: Tensor, seen: InMemory | InFile) -> str | None:
    """Collect what the layer sees of the samples; why that is no objective of its rows, or None."""
    with evaluating(head.model):
        for some in ids.split(task.batch_size_within_memory(256)):
            one = sight(task, head, task.batch(some))
            if (doubt := disagreement(task, one, one)) is not None:
                return doubt
            if one.rows.shape[1] != 1:
                return SEVERAL_ROWS
            seen.add(one)
    return None


def why_not_head(task: Task) -> str | None:
    """Why a linear layer is not all that is trained, as far as the first samples show; None where it is."""
    layer = linear_head(task.model)
    if isinstance(layer, str) or (why := why_not_linear(task, task.model)) is not None:
        return layer if isinstance(layer, str) else why
    return None if task.ends_in(layer) else "the model's outputs are not those of the linear layer"


def fits_into_memory(task: Task) -> bool:
    """Whether what the trained layer sees of all samples can be held, so that a product with it takes no pass."""
    layer = linear_head(task.model)
    count = len(task.train_set)
    return task.fits_into_memory(count) if isinstance(layer, str) else count * layer.in_features <= MOST_KEPT


def _not_convex(why: str) -> NeverSupportedError:
    return NeverSupportedError(
        f"method exact is for convex models, and this one is not, or is not known to be ({why}); leave method out, or "
        "say Task(convex=True) where you know that it is."
    )


@dataclass(frozen=True)
class Certified:
    """Weights, and how far they can be from the minimum."""

    weights: Tensor
    bound: float
    moved: float = 0.0
    """How far they are from where the steps began."""


Allowed = Callable[[float, float], float]
"""By how far weights have moved and their bound: how large that may be."""


def never(_: float, __: float) -> float:
    """What a search allows that goes on as long as a step helps."""
    return 0.0


def newton(
    objective: Objective,
    start: Tensor,
    inverse: Precondition,
    steps: int,
    allowed: Allowed = never,
) -> Iterator[Certified]:
    """The weights before each step and after the last, each with its bound; it ends where no step helps any more.

    A step is solved for just as well as its bound needs, or as the next one can make up for.
    """
    local = objective.at(start)
    for _ in range(steps):
        moved = float((local.weights - start).norm())

        def enough(found: NewtonStep, moved: float = moved) -> bool:
            bound = found.distance(objective)
            return bound <= allowed(moved, bound) or found.missed <= INEXACT * float(found.gradient.norm())

        plain = float(local.gradient.norm()) / objective.decay
        if plain <= allowed(moved, plain):  # by strong convexity alone
            yield Certified(local.weights, plain, moved)
            return
        found = local.step(inverse, enough)
        yield Certified(local.weights, min(plain, found.distance(objective)), moved)
        following = _shorter_until_it_falls(objective, local, found.step, float((found.step * found.gradient).sum()))
        if following is None:
            return
        local = following
    last = local.step(inverse).distance(objective)
    yield Certified(local.weights, last, float((local.weights - start).norm()))


def _shorter_until_it_falls(objective: Objective, local: Near, step: Tensor, slope: float) -> Near | None:
    """The next weights; None where the objective falls no more, which near the minimum is rounding."""
    share = 1.0
    while share > SHORTEST:
        following = objective.at(local.weights - share * step)
        if following.value < local.value - max(SUFFICIENT * share * slope, DIGITS * abs(local.value)):
            return following
        if share == 1.0 and float(following.gradient.norm()) < 0.5 * float(local.gradient.norm()):
            return following  # so near that the objective's digits don't show the fall
        share /= 2
    return None


def _said(now: Certified, rounding: float, precision: torch.dtype) -> str:
    bound = now.bound + rounding
    words = f"the weights moved by {now.moved:.3g}, and are within {bound:.2g} of those of the exact minimum"
    if rounding > now.bound:
        return f"{words}, which is mostly the rounding of {str(precision).removeprefix('torch.')} weights"
    return words
