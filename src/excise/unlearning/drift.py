"""Drift: a pass over the retained samples that lets the model wander off from those it should forget.

It is plain training on the retained samples, except that at first a constant push along the Newton step of the
forgotten samples is added. What only those samples held in place is pushed away; what others need is learned back in
the rest of the pass. The learning rate is about what a training ends with: a larger one, or more weight decay than
the training had, would change what the network says about everything (``docs/quality.md``). Networks that know images
by heart may be taught what they say about views of them (see ``views``), and a whole class is denied (see ``denial``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.checks import is_number, positive, require, whole
from excise._support.names import fill_in
from excise.curvature.strategies import Cached, Curvature, InverseCurvature, curvature_named
from excise.errors import warn
from excise.slices.slices import Block, whole_model_block
from excise.task.parameters import Tensors, move, trainable, trained_parameters
from excise.task.task import Task, evaluating
from excise.training.loop import Pass, Step, cosine, descend
from excise.training.sgd import SGD
from excise.unlearning.blankets import SelectedSlices
from excise.unlearning.denial import Denial
from excise.unlearning.direction import influence, prepare_curvature
from excise.unlearning.method import SAMPLES, Applied, Removal, Workspace, register
from excise.unlearning.selection import SliceSelection, selection_named
from excise.unlearning.step import nothing_forgotten
from excise.unlearning.suitability import warn_of_untouched
from excise.unlearning.views import Lesson, Views

LEAST_FORCE = 1 / 16  # that a drift is tried with
BATCHES, LEAST_BATCH = 16, 8  # a pass in fewer batches has too few steps to learn back what it harmed


class NotAWholeClassWarning(UserWarning):
    """Samples of a class are denied while others of it are retained."""


@register("drift")
@dataclass(frozen=True)
class Drift:
    """A pass over the retained samples; the defaults are those for one.

    The learning rate falls to 0 along a cosine. For the first ``active`` share of the steps weight decay is ``decay``
    (if that is more than the task's), and the push moves the weights by ``push`` times the Newton step in all.
    """

    epochs: int = 1
    active: float = 0.4
    decay: float = 0.0
    push: float = 0.5
    lr: float = 0.003
    momentum: float = 0.9
    batch_size: int = 64
    """At most: of few retained samples batches are smaller."""
    selection: SliceSelection | None = None
    """Which slices move; None for all parameters."""
    curvature: Curvature = field(default_factory=Cached)
    """With which the push is computed."""
    denial: float = 0.0
    """Weight of denying the forgotten samples' answers, in the active steps."""
    clip: float | None = None
    """The longest gradient of a batch: a model that is jolted out of what it knows by heart must not be thrown off."""
    views: Views | None = None
    """Teach the answers to views of the forgotten images along the way."""

    heeds_guard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fill_in(self, curvature=curvature_named(self.curvature))
        if self.selection is not None:
            fill_in(self, selection=selection_named(self.selection))
        whole(self.epochs, "epochs")
        whole(self.batch_size, "batch_size")
        positive(self.lr, "lr")
        for name in ("active", "momentum"):
            require(is_number(getattr(self, name)), name, getattr(self, name), "a number")
        views = self.views is None or isinstance(self.views, Views)
        require(views, "views", self.views, "a Views object or None")
        require(0 <= self.active <= 1, "active", self.active, "from 0 to 1")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to less than 1")
        for name in ("decay", "denial", "push"):
            value = getattr(self, name)
            require(is_number(value) and 0 <= value < math.inf, name, value, "a finite number, 0 or more")
        require(self.active or not self.denial, "active", self.active, "above 0 where denial is, which acts then")
        if self.clip is not None:
            positive(self.clip, "clip")

    @classmethod
    def thorough(cls) -> Drift:
        """Three passes: slower and better."""
        return cls(epochs=3, active=0.5)

    @classmethod
    def of_class(cls) -> Drift:
        """For all samples of a class: three passes, in the first half of which their answers are denied."""
        return cls(epochs=3, active=0.5, push=0.0, lr=0.03, denial=0.1, clip=1.0)

    @classmethod
    def of_images(cls, *, flip: bool = False) -> Drift:
        """For images that a network knows by heart: one gentle pass that teaches the answers to shifted copies.

        With ``flip`` these are mirrored too: where left and right mean the same, not for digits.
        """
        return cls(active=0.0, push=0.0, lr=0.01, views=Views(flip=flip))

    def check(self, workspace: Workspace) -> None:
        """Refuse a model that can't be sliced, where slices are chosen."""
        if self.selection is not None:
            warn_of_untouched(workspace.task.model, workspace.slices)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """Those that the curvature is taken from."""
        if not workspace.has_slices:
            return SAMPLES
        return self.curvature.count(workspace.task, model, workspace.slices)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> InverseCurvature | None:
        """The curvature that the push needs; None where there is none."""
        if not self.push and self.selection is None:
            return None
        with evaluating(model):
            return prepare_curvature(self.curvature, workspace, model, ids, all_slices=self.selection is None)

    def apply(
        self, workspace: Workspace, prepared: InverseCurvature | None, model: nn.Module, removal: Removal
    ) -> Applied:
        """Drift, with half the force where the retained samples' loss rose too much."""
        if self.denial:
            _warn_of_others(workspace.task, removal)
        picked = self._select(workspace, prepared, model, removal)
        block, start = _block(workspace, model, picked), copy.deepcopy(trainable(model))
        step = {name: torch.zeros_like(weight) for name, weight in start.items()}
        if self.push and prepared is not None:
            step |= block.scatter(influence(workspace, prepared, model, block, removal), start)
        share = 1.0
        while share >= LEAST_FORCE:
            removal.stages.begin("drifting", self.epochs)
            self._pass(workspace.task, model, block, step, removal, share)
            losses = removal.retained.of_each(model)
            if removal.retained.keeps(model, losses):
                return Applied(set(picked.numbers), picked.scores, share, self._why_weaker(share), losses)
            share /= 2
            move(model, start, {})
        raise nothing_forgotten(workspace, picked, removal, "drift")

    def _why_weaker(self, share: float) -> str:
        if share == 1:
            return ""
        said = (
            f"the drift was repeated with {share:.0%} of its force to protect the retained samples, so it forgets less"
        )
        if self.epochs == 1:
            return f"{said}; a larger guard (--guard) allows more"
        return (
            f"{said}, maybe less than a single pass would: compare with Drift() (--method drift) or a larger guard "
            "(--guard)"
        )

    def _select(
        self, workspace: Workspace, prepared: InverseCurvature | None, model: nn.Module, removal: Removal
    ) -> SelectedSlices:
        if self.selection is not None and prepared is not None:
            return self.selection.select(workspace, prepared, model, removal)
        return SelectedSlices(tuple(range(len(workspace.slices))) if workspace.has_slices else ())

    def _pass(self, task: Task, model: nn.Module, block: Block, step: Tensors, removal: Removal, force: float) -> None:
        ids, lesson, denied = torch.tensor(removal.ids), None, None
        if self.views is not None:
            lesson = Lesson(task, model, ids, self.views, removal.seed)
        if self.denial:
            denied = Denial(task, ids, size=self.batch_size, seed=removal.seed)
        drift(
            task,
            model,
            removal.residual,
            step,
            self,
            block=block,
            seed=removal.seed,
            force=force,
            lesson=lesson,
            denied=denied,
        )


def _warn_of_others(task: Task, removal: Removal) -> None:
    """Warn where answers are denied that retained samples have too: a retrained model would give them as well."""
    denied = torch.cat([task.targets_in(batch) for batch in task.batches(removal.ids)])
    if denied.ndim != 1 or denied.is_floating_point():
        return
    if any(torch.isin(task.targets_in(batch), denied).any() for batch in task.batches(removal.residual)):
        warn(
            "denial is for a whole class, and retained samples have the same classes: a retrained model would still "
            "give these answers to the forgotten samples; use Step() or Drift() for single samples.",
            NotAWholeClassWarning,
        )


def _block(workspace: Workspace, model: nn.Module, picked: SelectedSlices) -> Block:
    return workspace.slices.block(picked.numbers) if picked.numbers else whole_model_block(model)


register("thorough")(Drift.thorough)
register("class")(Drift.of_class)
register("images")(Drift.of_images)


@register("mirrored-images")
def mirrored_images() -> Drift:
    """``Drift.of_images`` with mirrored copies too: for images whose mirror image means the same."""
    return Drift.of_images(flip=True)


def batch_size_of(how: Drift, count: int) -> int:
    """That of a pass over so many samples."""
    return min(how.batch_size, max(LEAST_BATCH, count // BATCHES))


def drift(
    task: Task,
    model: nn.Module,
    residual: Tensor,
    step: Tensors,
    how: Drift,
    *,
    block: Block,
    seed: int,
    force: float = 1.0,
    lesson: Lesson | None = None,
    denied: Denial | None = None,
    batch_size: int | None = None,
) -> None:
    """Drift in place, with ``step`` the Newton step by parameter; ``force`` scales all but the training itself."""
    batch_size = batch_size or batch_size_of(how, len(residual))
    total = how.epochs * math.ceil(len(residual) / batch_size)
    rates = [how.lr * cosine(at, total) for at in range(total)]
    last_active = max(1, round(how.active * total)) if how.active else 0
    strength = force * how.push * (1 - how.momentum) / max(sum(rates[:last_active]), 1e-12)
    pull = _Pull(
        weights=trained_parameters(model),
        step=step,
        mask=None if how.selection is None else _mask(block, model),
        strength=strength,
        decay=task.weight_decay,
        extra_decay=force * max(0.0, how.decay - task.weight_decay),
        clip=how.clip,
        last_active=last_active,
    )

    def loss(ids: Tensor) -> Tensor:
        value = processes.part_of_mean(ids, lambda some: task.losses(model, task.batch(some)))
        if lesson is not None:
            value = value + force * lesson.loss(model)
        if denied is not None and pull.active:
            value = value + force * how.denial * denied.loss(model)
        return value

    passes = descend(
        SGD(pull.weights.values(), lr=how.lr, momentum=how.momentum, foreach=True),
        [Pass(residual, loss, task.reading_ahead, shared=True)] * how.epochs,
        batch_size=batch_size,
        share=cosine,
        generator=torch.Generator().manual_seed(seed),
        training=False,
        before_step=pull,
    )
    for _ in passes:
        pass
    model.zero_grad()  # the model is handed out


@dataclass
class _Pull:
    """What drift adds to the gradients of a step, and in which of the steps."""

    weights: Mapping[str, nn.Parameter]
    step: Tensors
    mask: Tensors | None
    strength: float
    """Of the push."""
    decay: float
    extra_decay: float
    """In the active steps."""
    clip: float | None
    last_active: int
    taken: int = 0
    """Steps so far."""

    @property
    def active(self) -> bool:
        """Whether the step to come is one of those in which the model is driven off."""
        return self.taken < self.last_active

    @torch.no_grad()
    def __call__(self, _: Step) -> None:
        """Change the gradients before a step."""
        gradients = {name: _gradient(weight) for name, weight in self.weights.items()}
        scale = 1.0 if self.clip is None else self.clip / max(_length(gradients.values()), self.clip)
        decay = self.decay + self.extra_decay * self.active
        for name, gradient in gradients.items():
            if scale != 1:
                gradient.mul_(scale)
            if decay:
                gradient.add_(self.weights[name], alpha=decay)
            if self.active and self.strength:
                gradient.sub_(self.step[name], alpha=self.strength)
            if self.mask is not None:
                gradient.mul_(self.mask[name])
        self.taken += 1


def _gradient(weight: Tensor) -> Tensor:
    """A weight's gradient: 0 for one that the loss does not use, which decays and is pushed all the same."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _length(tensors: Iterable[Tensor]) -> float:
    """Of all the tensors as one vector."""
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])))


def _mask(block: Block, model: nn.Module) -> dict[str, Tensor]:
    """1 where the block is, 0 elsewhere."""
    like = trainable(model)
    return block.scatter(torch.ones(block.size(like)), like)
