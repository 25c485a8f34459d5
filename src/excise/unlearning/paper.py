"""The paper's update as its published code has it, except that the Hessian of the sample is really computed.

The curvature of the training set is the rank-one finite difference of the gradients of the last two epochs, that of the
sample one between the model and the same after a small step of SGD on it:

    H = (n · ddᵀ/‖Δw‖₁ - eeᵀ/‖Δw'‖₁) / (n - 1),    w_P += (H + λI)⁻¹ ∇ℓ / (n - 1),

followed by noise on the block. (The published code takes the sample's second gradient from the first one's variable, so
that e = 0.) It is here to be compared with: H has rank two, so that in all other directions the step is ∇ℓ / λ.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise._support.checks import whole
from excise._support.names import fill_in
from excise.curvature.operators import rank_one_root
from excise.curvature.woodbury import woodbury_of_multiple
from excise.errors import InputError
from excise.privacy.gaussian import paper_sigma
from excise.slices.slices import Block
from excise.task import objective
from excise.task.parameters import move, trainable, trained_parameters
from excise.task.task import Task
from excise.training.trace import GradientTrace
from excise.unlearning.method import Applied, Removal, Unprepared, Workspace, register
from excise.unlearning.selection import Joint, SliceSelection, selection_named
from excise.unlearning.suitability import warn_of_untouched

PAPER_COPIES = 1000
SAMPLE_LR = 1e-3  # of the step that the sample's finite difference is taken over


@register("paper")
@dataclass(frozen=True)
class PaperStep(Unprepared):
    """All choices as in the paper: joint L-FOCI over 1,000 copies, its rank-two curvature, its noise on the block.

    It removes one sample after the other, and later requests go on from the noisy weights, as the published code does.
    It is there to be compared with.
    """

    trace: GradientTrace | None = field(default=None, repr=False)
    """The gradients of the last two epochs, from ``fit(..., recorder=True)`` or a ``GradientRecorder``."""
    selection: SliceSelection = field(default_factory=lambda: Joint(copies=PAPER_COPIES))
    noise_samples: int | None = None
    """How many training samples to compute the noise for; None for those there are. The noise falls with their square,
    so that a study on a part of a data set would drown in it."""

    heeds_guard: ClassVar[bool] = False
    goes_on_from_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fill_in(self, selection=selection_named(self.selection))
        if self.trace is None:
            raise InputError(
                "PaperStep needs trace=, the gradients of the last two epochs: train with fit(..., recorder=True) and "
                "pass its .trace, or use a GradientRecorder in a loop of your own."
            )
        if self.noise_samples is not None:
            whole(self.noise_samples, "noise_samples")

    def check(self, workspace: Workspace) -> None:
        """Refuse a trace of another model, and a task without weight decay."""
        warn_of_untouched(workspace.task.model, workspace.slices)
        shapes = {name: weight.shape for name, weight in trained_parameters(workspace.task.model).items()}
        if {name: tensor.shape for name, tensor in self._trace.gradients[1].items()} != shapes:
            raise InputError("trace is of another model: its parameters differ in name or shape from the task's.")
        if workspace.task.weight_decay == 0:
            raise InputError("PaperStep needs weight_decay > 0 in the task: its curvature is singular without.")

    def sigma(self, task: Task, removed: int, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """The published noise, for one sample at a time whatever was removed before."""
        samples = self.noise_samples or len(task.train_set)
        return paper_sigma(samples=samples, weight_decay=task.weight_decay, epsilon=epsilon, delta=delta)

    def apply(self, workspace: Workspace, _: None, model: nn.Module, removal: Removal) -> Applied:
        """One sample after the other, each with a block of its own."""
        numbers: set[int] = set()
        scores: dict[int, float] = {}
        left = len(workspace.task.train_set) - removal.earlier
        for done, sample in enumerate(removal.ids):
            alone = replace(removal, ids=[sample])
            picked = self.selection.select(workspace, _NoCurvature(), model, alone)
            block = workspace.slices.block(picked.numbers)
            removal.stages.begin("taking the step")
            start = copy.deepcopy(trainable(model))
            change = paper_change(workspace.task, model, block, sample, self._trace, left - done)
            move(model, start, block.scatter(change, start))
            numbers, scores = numbers | set(picked.numbers), scores | picked.scores
        return Applied(numbers, scores)

    @property
    def _trace(self) -> GradientTrace:
        if self.trace is None:
            raise InputError("PaperStep needs trace=.")
        return self.trace


class _NoCurvature:
    """The paper's selections go by activations alone."""

    def solve(self, *_: object, **__: object) -> Tensor:
        raise InputError("selection 'largest-change' needs a curvature, and PaperStep has none of that kind; use Step.")


def paper_change(task: Task, model: nn.Module, block: Block, sample: int, trace: GradientTrace, samples: int) -> Tensor:
    """What is added to the block to remove one of so many samples."""
    first = objective.gradient(task, model, [sample])
    gradient = block.gather(first)
    if not gradient.any():
        return gradient
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in trained_parameters(moved).items():
            weight.sub_(SAMPLE_LR * first[name])
    second = objective.gradient(task, moved, [sample])
    of_all = rank_one_root(block, trace.gradients, trace.parameters).to(gradient)
    before, after = trainable(model), trainable(moved)
    if torch.equal(block.gather(before), block.gather(after)):  # a gradient so small that rounding eats the step
        of_sample = torch.zeros_like(gradient)
    else:
        of_sample = rank_one_root(block, (first, second), (before, after))
    signs = torch.tensor([float(samples), -1.0]).to(gradient) / (samples - 1)
    rows = torch.stack([of_all, of_sample])
    return woodbury_of_multiple(gradient, rows, task.weight_decay, signs) / (samples - 1)
