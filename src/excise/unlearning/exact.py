"""Exact forgetting of convex models: Newton steps until a certificate says that next to nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise._support.checks import positive, require, whole
from excise.errors import InputError, NeverSupportedError
from excise.privacy.convexity import why_not_linear
from excise.privacy.head_objective import (
    HeadObjective,
    Local,
    Precondition,
    objective_of,
    set_trained_weights,
    trained_weights,
)
from excise.privacy.heads import linear_head
from excise.privacy.sightings import Head, disagreement, sight
from excise.task.parameters import trainable
from excise.task.task import Task, evaluating
from excise.training.exact import exact_fit
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.selection import slice_norms

SUFFICIENT = 1e-4  # share of the expected fall of the objective that a step has to bring (Armijo's rule)
SHORTEST = 1e-8  # share of a step that is still tried


@dataclass(frozen=True)
class Kept:
    """What the layer that is trained sees of all samples, and the inverse of the curvature."""

    ids: Tensor
    objective: HeadObjective
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
        with evaluating(model):
            batches = ids.split(task.batch_size_within_memory(256))
            seen = [sight(task, Head(model, layer), task.batch(some)) for some in batches]
        doubts = filter(None, (disagreement(task, one, one) for one in seen))
        if (doubt := next(doubts, None)) is not None:
            if task.convex:
                return None
            raise _not_convex(doubt)
        if any(one.rows.shape[1] != 1 for one in seen):
            return None  # such as one of each word
        objective = objective_of(task, layer, seen, task.mass(ids))
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
        layer = linear_head(model)
        assert isinstance(layer, nn.Linear)
        left = ~torch.isin(kept.ids, torch.tensor(sorted(removal.gone)))
        objective = kept.objective.without(left, task.mass(kept.ids[left]))
        start = trained_weights(layer)
        for now in newton(objective, start, kept.inverse, self.steps):
            far = float((now.weights - start).norm())
            if now.bound <= (self.bound or self.share * max(0.0, far - now.bound)):
                break
        set_trained_weights(layer, now.weights)
        rounded = next(newton(objective, trained_weights(layer), kept.inverse, 1))
        return _said(rounded, float((rounded.weights - start).norm()), layer.weight.dtype)


def why_not_head(task: Task) -> str | None:
    """Why a linear layer is not all that is trained, as far as the first samples show; None where it is."""
    layer = linear_head(task.model)
    if isinstance(layer, str) or (why := why_not_linear(task, task.model)) is not None:
        return layer if isinstance(layer, str) else why
    return None if task.ends_in(layer) else "the model's outputs are not those of the linear layer"


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


def newton(objective: HeadObjective, start: Tensor, inverse: Precondition, steps: int) -> Iterator[Certified]:
    """The weights before each step and after the last, each with its bound; it ends where no step helps any more."""
    local = objective.at(start)
    for _ in range(steps):
        found = local.step(inverse)
        yield Certified(local.weights, found.distance(objective))
        following = _shorter_until_it_falls(objective, local, found.step, float((found.step * found.gradient).sum()))
        if following is None:
            return
        local = following
    yield Certified(local.weights, local.step(inverse).distance(objective))


def _shorter_until_it_falls(objective: HeadObjective, local: Local, step: Tensor, slope: float) -> Local | None:
    """The next weights; None where the objective falls no more, which near the minimum is rounding."""
    share = 1.0
    while share > SHORTEST:
        following = objective.at(local.weights - share * step)
        if following.value <= local.value - SUFFICIENT * share * slope:
            return following
        if share == 1.0 and float(following.gradient.norm()) < 0.5 * float(local.gradient.norm()):
            return following  # so near that the objective's digits don't show the fall
        share /= 2
    return None


def _said(now: Certified, moved: float, precision: torch.dtype) -> str:
    size = torch.finfo(precision).eps * float(now.weights.norm())
    words = f"the weights moved by {moved:.3g}, and are within {now.bound:.2g} of those of the exact minimum"
    if now.bound <= size:
        return f"{words}, which is the rounding of {str(precision).removeprefix('torch.')} weights"
    return words
