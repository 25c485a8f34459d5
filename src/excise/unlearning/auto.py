"""The method that chooses the method: by the model, by what there is to compare with, and by the request."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from excise.curvature.margins import Margins, has_margins, margins
from excise.errors import NeverSupportedError, NothingForgotten
from excise.privacy.head_objective import trained_weights
from excise.privacy.heads import linear_head
from excise.task.task import Task, evaluating
from excise.unlearning.answered import Answered
from excise.unlearning.answers import classes_gone
from excise.unlearning.calibrated import Calibrated
from excise.unlearning.drift import Drift
from excise.unlearning.exact import Exact, fits_into_memory, why_not_head
from excise.unlearning.exchangeability import FEWEST_HELD_OUT
from excise.unlearning.method import Applied, Method, Removal, Workspace, register
from excise.unlearning.predicted import SAMPLES, Predicted, why_not_predicted
from excise.unlearning.selection import AllSlices
from excise.unlearning.settling import moves_little
from excise.unlearning.step import Step

MOST_OF_CLASS = 0.05  # share of a class that a request may take before it counts as a part of the class
MANY = 0.1  # share of the training set, from which on the docs advise to retrain
NEAR_MINIMUM = 0.03  # share of the weights' length that a model may be away from its minimum to count as trained to it
NOT_AT_MINIMUM = (
    "the model is linear, but not at the minimum of its objective, where retraining would not end either (method "
    "exact goes there all the same)"
)


@dataclass(frozen=True)
class Choice:
    """A method and why it is the one."""

    method: Method
    why: str


@dataclass
class Prepared:
    """The method for most requests, and what was made for it and for others."""

    usual: Choice
    ids: Tensor
    """Retained samples, in random order."""
    known: Margins | None
    """Theirs; None where samples have none."""
    by_heart: bool
    """Whether the model is so sure of them that a linear network says nothing about them."""
    made: dict[str, Any]
    linear: bool = False
    """Whether the model is a linear one that was not trained to its minimum."""
    settles: bool = False
    """Whether a pass follows for parts of a class: retained samples can't respond, and a pass alone moves little."""


@register("auto")
@dataclass(frozen=True)
class Auto:
    """Choose by what was measured (``docs/which-method.md``), and say what was chosen and why.

    A convex model that was trained to its minimum is moved to the retrained weights, with a certificate. For other
    models with held-out samples, answers are predicted, and retained samples respond; but of linear models the Newton
    step is better, as long as held-out samples say. Of a model that knows its samples by heart nobody responds; a
    gentle pass follows there where a part of a class goes, unless a pass alone would move the model. All samples of a
    class are denied. Without held-out samples nothing tells how far to go, and L-FOCI's block takes a step.
    """

    heeds_guard: ClassVar[bool] = True

    def check(self, workspace: Workspace) -> None:
        """Refuse what the chosen method refuses."""
        choose(workspace).method.check(workspace)

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """As many as any of the methods needs that a request may be answered by."""
        return max(SAMPLES, choose(workspace).method.samples(workspace, model))

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> Prepared:
        """What the methods prepare that a request may be answered by."""
        prepared = Prepared(choose(workspace), ids, None, False, {})
        if isinstance(prepared.usual.method, Exact) and not _is_at_minimum(workspace, prepared, model, ids):
            prepared.usual, prepared.linear = choose(workspace, exactly=False), True
        newton = prepared.usual.method
        if isinstance(newton, Calibrated) and _has_margins(workspace):
            with evaluating(model):
                answered = Answered.by(workspace, model, ids)
                if not prepared.linear and why_not_predicted(workspace) is None:
                    made = Predicted().prepare_from(workspace, model, ids[:SAMPLES], answered)
                    prepared.made[_name(Predicted())] = made
                    network, prepared.by_heart = made.network, made.by_heart
                    prepared.settles = made.full_hold is None and moves_little(
                        workspace.task, model, network.block, ids, network.trace, workspace.seed, answered
                    )
            prepared.known = answered.retained
            if _name(Predicted()) not in prepared.made:
                known = answered.known(workspace.task, ids[: newton.samples(workspace, model)])
                prepared.made[_name(newton)] = newton.prepare_from(workspace, model, known)
        else:
            _made(workspace, prepared, prepared.usual.method, model, ids)
        return prepared

    def apply(self, workspace: Workspace, prepared: Prepared, model: nn.Module, removal: Removal) -> Applied:
        """Forget by the method that is right for the request."""
        choice = _for_request(workspace.task, prepared, model, removal)
        earlier = torch.tensor(sorted(removal.gone - set(removal.ids)), dtype=torch.long)
        made = _made(workspace, prepared, choice.method, model, prepared.ids[~torch.isin(prepared.ids, earlier)])
        done = choice.method.apply(workspace, made, model, removal)
        said = f"method {_name(choice.method)} was chosen, since {choice.why}"
        exact = isinstance(choice.method, Exact)
        notes = [NOT_AT_MINIMUM if prepared.linear else "", "" if exact else _note_of_many(workspace.task, removal)]
        return dataclasses.replace(done, shortened="; ".join(filter(None, [said, *notes, done.shortened])))


def _note_of_many(task: Task, removal: Removal) -> str:
    """That so many samples are gone that retraining is better; nothing where they are few."""
    share = len(removal.gone) / len(task.train_set)
    if share <= MANY or task.convex:
        return ""
    return f"with this request {share:.0%} of the training set is gone, for which retraining is better: errors add up"


def choose(workspace: Workspace, *, exactly: bool = True) -> Choice:
    """The method for requests that are nothing special, of a model that does not know its samples by heart.

    ``exactly`` tells whether a model that looks linear may be moved to the minimum of its objective.
    """
    task = workspace.task
    if not workspace.has_slices:
        return Choice(Drift(), "the model can't be sliced; a gentle pass, which is left, forgets a part only")
    if task.convex or (exactly and task.convex is None and why_not_head(task) is None):
        if task.weight_decay > 0 and exactly:
            if fits_into_memory(task):
                return Choice(Exact(), "the model is convex, so that the retrained weights can be had exactly")
            return Choice(
                Step(AllSlices()),
                "the model is convex, but sees more of its samples than memory can hold, so that method exact would go "
                "over them dozens of times",
            )
        return Choice(Step(AllSlices()), "the model is convex, but not at a minimum, or without weight decay has none")
    count = 0 if task.test_set is None else len(task.test_set)
    if count < FEWEST_HELD_OUT:
        few = "there is no test_set" if not count else f"test_set has only {count} samples"
        return Choice(Step(), f"{few}, so that nothing tells how far to go; pass held-out samples for a better one")
    return Choice(Calibrated(), "held-out samples tell how long its step must be")


def _is_at_minimum(workspace: Workspace, prepared: Prepared, model: nn.Module, ids: Tensor) -> bool:
    """Whether a model is a linear layer on all samples, and was trained to the minimum of its objective.

    If it was not, retraining would not end there either, and going there would change more than forgetting does.
    """
    try:
        kept = _made(workspace, prepared, prepared.usual.method, model, ids)
    except NeverSupportedError:  # what the first samples did not show
        return False
    layer = linear_head(model)
    if kept is None or isinstance(layer, str):
        return True  # the task says that it is convex
    weights = trained_weights(layer)
    here, most = kept.objective.at(weights), NEAR_MINIMUM * float(weights.norm())
    if here.least_step(kept.inverse) > most:  # what takes dozens of products to find is not needed
        return False
    return float(here.step(kept.inverse, lambda _: True).step.norm()) <= most


def _has_margins(workspace: Workspace) -> bool:
    with evaluating(workspace.task.model):
        return has_margins(workspace.task, workspace.task.model)


def _made(workspace: Workspace, prepared: Prepared, method: Method, model: nn.Module, ids: Tensor) -> Any:
    """What a method prepares, made when a request first asks for it."""
    name = _name(method)
    if name not in prepared.made:
        prepared.made[name] = method.prepare(workspace, model, ids[: method.samples(workspace, model)])
    return prepared.made[name]


def _for_request(task: Task, prepared: Prepared, model: nn.Module, removal: Removal) -> Choice:
    """The method for a request."""
    if prepared.known is None:
        return prepared.usual
    asked = margins(task, model, removal.ids)
    asked = asked.at(asked.weights > 0)
    if not len(asked):
        raise NothingForgotten(
            "none of the samples has a label that counts, so that the training learned nothing from their loss; the "
            "model is as it was."
        )
    label, most = max(Counter(asked.classes.tolist()).items(), key=lambda pair: pair[1])
    left = prepared.known.at(~torch.isin(prepared.ids, removal.all_gone))
    others = int((left.classes == label).sum()) * len(removal.residual) / max(1, len(left))  # as a sample tells
    if not bool(torch.isin(left.classes, asked.classes).any()) and _none_is_left(task, asked.classes.unique(), removal):
        return Choice(Drift.of_class(), "no sample of their class is left")
    if prepared.linear:
        return Choice(Calibrated(), "of a linear model its direction is right for all requests")
    if _name(Predicted()) not in prepared.made:
        return prepared.usual
    if len(removal.ids) > prepared.made[_name(Predicted())].most_rows:
        return Choice(Calibrated(), "the gradients of so many samples would not fit into memory at once")
    share = most / (most + others)
    if 2 * most > len(asked) and share > MOST_OF_CLASS:
        return Choice(Predicted(settle=prepared.settles), f"{share:.0%} of class {label} go at once")
    if prepared.by_heart:
        return Choice(Predicted(), "the model knows its training samples by heart")
    return Choice(Predicted(), "held-out samples tell how strongly the model holds on to training samples")


def _none_is_left(task: Task, classes: Tensor, removal: Removal) -> bool:
    """Whether no retained sample at all has one of the classes."""
    return len(classes_gone(task, classes, removal.residual)) == len(classes)


def _name(method: Method) -> str:
    return str(getattr(method, "name", type(method).__name__))
