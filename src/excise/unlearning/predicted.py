"""Predicted answers: what the model would say had it never seen the samples, and the step that makes it say so."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise._support.checks import require, whole
from excise._support.sampling import draw_by_loss
from excise.curvature import kfac
from excise.curvature.margins import has_margins, margins
from excise.errors import InputError, NeverSupportedError
from excise.task.parameters import move, trainable
from excise.task.task import evaluating
from excise.unlearning.answered import Answered
from excise.unlearning.blankets import SelectedSlices
from excise.unlearning.exchangeability import nothing_to_forget
from excise.unlearning.full_response import HELD_OUT, LOOKED_AT, Among, Looked, Response, respond, share_left
from excise.unlearning.held_out_answers import HeldOutAnswers
from excise.unlearning.hold import Hold, OnTrial, Trial
from excise.unlearning.linearised import Gradients, Linearised, Request, most_rows
from excise.unlearning.method import Applied, Removal, Workspace, register
from excise.unlearning.settling import SETTLED, settle
from excise.unlearning.step import nothing_forgotten
from excise.unlearning.suitability import warn_of_untouched

SAMPLES = 4000  # retained ones, among which those that notice a step are looked for
CURVATURE_SAMPLES = 1000
FEWEST_ON_TRIAL = 20  # samples; fewer tell nothing about how a model holds on to them
ROUNDS = 4  # in which a model is moved to answers that are far from its own; half of it shows whom that harms
SETTLED_ROUNDS = 2  # the same, where a pass follows
HARM = 0.01  # rise of a retained sample's loss, from which on its resistance is worth its cost
BY_DAMPING, MOST_CHANGE = 1.6, 10.0  # the hold grows by about the 0.6th power of the damping, which may change so much
FEW = 0.03  # share of the samples on trial that a request may take, and still leave the others to speak for all
HEAVIER = 1.15  # times the tail of the others' losses, from which on the request's samples are not hard but wrong
MUCH_STRONGER = 1.5  # times the hold that all tell, from which on the request's samples have spoilt that
SHORTER, LEAST_SHARE = 0.7, 0.1  # of the way, where the guard stops it
LITTLE_SHORTER = 0.85  # the same of a response, of which a part costs nothing


@dataclass(frozen=True)
class Prepared:
    """What all requests share."""

    network: Linearised
    known: Among
    """Retained samples among which those are looked for that notice a step, or where they don't respond, that it
    harms."""
    unseen: Among
    """Held-out samples that tell how far a response goes."""
    trial: Trial
    """Retained samples, by which was found"""
    hold: Hold
    """how samples hold the weights,"""
    full_hold: Hold | None
    """and how strongly where retained samples respond in full; None where they don't."""
    left: float
    """Of the rise of forgotten samples' losses, what a response leaves."""
    answers: HeldOutAnswers
    resisting: int
    """Samples on trial, the first ones, that resist in a request."""
    most_rows: int
    """Samples whose gradients fit into memory."""

    @cached_property
    def retained(self) -> Gradients:
        """Those that resist."""
        return self.trial.on_trial.samples.at(torch.arange(min(self.resisting, len(self.trial.on_trial.samples))))

    @cached_property
    def among(self) -> Tensor:
        """Their kernel."""
        return self.trial.on_trial.among[: len(self.retained), : len(self.retained)]

    @property
    def by_heart(self) -> bool:
        """Whether the model knows its samples so well that a linear network says nothing about them."""
        return self.answers.are_needed

    def as_of(self, model: nn.Module) -> Prepared:
        """The same with answers of the model as earlier requests left it, by which is seen what this one does."""
        task = self.network.task
        known = replace(self.known, margins=margins(task, model, self.known.ids))
        unseen = replace(self.unseen, margins=margins(task, model, self.unseen.ids, task.test_set))
        return replace(self, known=known, unseen=unseen)

    def without(self, model: nn.Module, gone: Tensor) -> Prepared:
        """The same by samples that stay, where some of those on trial go: wrong labels would tell a weaker hold.

        Hard samples would not: held-out samples have such ones, too. Without them the hold looks too strong, with them
        it is right for requests that are not as hard, and what was measured lies half-way.
        """
        if self.full_hold is None or self.trial.share_of(gone) < FEW:
            return self
        stay, made = self.trial.without(gone), self
        if not len(stay.on_trial.samples) or not stay.straight.strength:
            return self
        if 0 < self.trial.tail < HEAVIER * stay.tail:
            stronger = math.sqrt(stay.straight.strength / self.trial.straight.strength)
            return replace(self, hold=self.hold.times(stronger), full_hold=self.full_hold.times(stronger))
        found = stay.bent
        if found.strength > MUCH_STRONGER * self.hold.strength:  # so that the damping, too, is wrong
            network = self.network.damped(self.network.damping * _less_damped(found))
            stay = stay.by(network, model)
            found, made = stay.bent, replace(self, network=network, trial=stay)
        return replace(made, hold=found, full_hold=stay.in_full(found, self.left))


@register("predicted")
@dataclass(frozen=True)
class Predicted:
    """Predict what the model would say about the samples had it never seen them, and move it to these answers.

    The network is taken as linear in its weights, and retained samples resist (see ``linearised`` and ``response``). It
    needs ``test_set``, whose samples tell once for a model how training samples hold the weights (see ``hold``): no
    length and no weight decay has to be guessed. Of a model that knows its training samples by heart the answers are
    those of held-out samples (see ``held_out_answers``). For losses that are cross-entropy of one class a sample.
    """

    trial: int = 160
    """Retained samples, of large loss rather than others, that are forgotten on trial to see how they hold the
    weights."""
    resisting: int = 64
    """How many of them resist in a request,"""
    harmed: int = 64
    """and, where they don't respond, how many of those that a step without their resistance would harm most."""
    respond: bool = True
    """Whether retained samples respond in full (see ``full_response``), which brings back what the step harms. They
    don't where the model knows its samples by heart."""
    settle: bool = False
    """Whether a gentle pass over retained samples follows, which brings back what the step harms (see ``settling``)."""

    heeds_guard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole(self.trial, "trial")
        whole(self.resisting, "resisting")
        whole(self.harmed, "harmed", 0)
        require(isinstance(self.respond, bool), "respond", self.respond, "True or False")
        require(isinstance(self.settle, bool), "settle", self.settle, "True or False")

    def check(self, workspace: Workspace) -> None:
        """Refuse a model that can't be sliced, and a loss without margins."""
        warn_of_untouched(workspace.task.model, workspace.slices)
        if (why := why_not_predicted(workspace)) is not None:
            raise NeverSupportedError(f"{why}; take Calibrated() (--method calibrated) or Step() (--method step).")

    def samples(self, workspace: Workspace, model: nn.Module) -> int:  # noqa: ARG002
        """Those among which harmed ones are looked for."""
        return SAMPLES

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> Prepared:
        """Curvature, gradients of samples that resist, and how strongly samples hold the weights."""
        with evaluating(model):
            return self.prepare_from(workspace, model, ids, Answered.by(workspace, model, ids))

    def prepare_from(self, workspace: Workspace, model: nn.Module, ids: Tensor, answered: Answered) -> Prepared:
        """The same for who knows the answers."""
        task, few = workspace.task, ids[:CURVATURE_SAMPLES]
        mass = task.mass(few) / len(few) * len(task.train_set)  # roughly: the hold makes up for it
        network = Linearised.of(task, model, workspace.slices, few, mass=mass, seed=workspace.seed)
        losses, roots = answered.known(task, ids), answered.known(task, ids, torch.sqrt)
        most, generator = most_rows(task, model, workspace.slices), torch.Generator().manual_seed(workspace.seed)
        drawn, inclusion = draw_by_loss(losses.losses, min(self.trial, most), generator)

        def tried(network: Linearised) -> Trial:
            samples = network.gradients(model, ids[drawn])
            return Trial(OnTrial.of(samples, 1 / (inclusion * len(ids))), losses, roots)

        trial = tried(network)
        hold, answers = _found(trial, answered)
        if self.respond and hold.strength and not answers.are_needed:
            network = network.damped(network.damping * _less_damped(hold))
            trial = tried(network)
            hold, answers = _found(trial, answered)
        shares = torch.full((len(ids),), len(task.train_set) / (mass * len(ids)), dtype=torch.double)
        known = Among(ids, answered.retained.at(torch.arange(len(ids))), shares)
        even = torch.full((len(answered.held_out),), 1 / len(answered.held_out), dtype=torch.double)
        unseen = Among(answered.held_out_ids, answered.held_out, even).drawn(HELD_OUT, workspace.seed)
        full_hold, left = None, 1.0
        if self.respond and hold.strength and not answers.are_needed:
            known = known.drawn(LOOKED_AT, workspace.seed)
            left = share_left(network, model, trial.on_trial, hold, known, workspace.seed, unseen)
            full_hold = trial.in_full(hold, left)
        else:
            known = known.with_smaller_margins()
        return Prepared(
            network=network,
            known=known,
            unseen=unseen,
            trial=trial,
            hold=hold,
            full_hold=full_hold,
            left=left,
            answers=answers,
            resisting=self.resisting,
            most_rows=most,
        )

    def apply(self, workspace: Workspace, prepared: Prepared, model: nn.Module, removal: Removal) -> Applied:
        """Move the model to the predicted answers, or as near as the guard allows."""
        removal.stages.begin("predicting answers")
        if len(removal.ids) > prepared.most_rows:
            raise InputError(
                f"ids has {len(removal.ids)} samples, and the gradients of {prepared.most_rows} fit into memory at "
                "once; ask for fewer at a time, or take Calibrated() (--method calibrated)."
            )
        if prepared.hold.strength == 0:
            prepared = self._anew(workspace, prepared, model, removal)
        if removal.gone != set(removal.ids):
            prepared = prepared.as_of(model)
        every, prepared = SelectedSlices(tuple(range(len(workspace.slices)))), prepared.without(model, removal.all_gone)
        start = copy.deepcopy(trainable(model))
        request, rounds = _request(prepared, model, removal), SETTLED_ROUNDS if self.settle else ROUNDS
        response = _response(prepared, model, start, request, removal)
        if response is None:
            _go(prepared, model, start, request, 1.0, rounds // 2)
            request = self._with_harmed(prepared, model, request, removal, start)
        for settled in (True, False) if self.settle else (False,):  # a pass may itself be what harms
            share = 1.0
            while share >= LEAST_SHARE:
                removal.stages.begin("taking the step")
                if response is None:
                    _go(prepared, model, start, request, share, rounds)
                else:
                    move(model, start, prepared.network.block.scatter(share * response.change, start))
                if settled:
                    removal.stages.begin("settling")
                    block, trace = prepared.network.block, prepared.network.trace
                    settle(workspace.task, model, block, removal.residual, trace, removal.seed)
                losses = removal.retained.of_each(model)
                if removal.retained.keeps(model, losses):
                    responded = "" if response is None else response.said
                    said = _said(prepared, share, responded, SETTLED if settled else "")
                    return Applied(set(every.numbers), {}, share, said, losses)
                share *= SHORTER if response is None else LITTLE_SHORTER
        raise nothing_forgotten(workspace, every, removal, "step")

    def _anew(self, workspace: Workspace, prepared: Prepared, model: nn.Module, removal: Removal) -> Prepared:
        """Prepared by samples that stay: wrong labels of the request may hide that the others are known too well."""
        stay = prepared.trial.losses.without(removal.all_gone)
        if len(stay.ids) and stay.rise > 0:
            prepared = self.prepare_from(workspace, model, stay.ids, Answered.by(workspace, model, stay.ids))
        if prepared.hold.strength == 0:
            found = prepared.trial.losses
            raise nothing_to_forget(float(found.losses.mean()), float(found.aims.mean()))
        return prepared

    def _with_harmed(
        self, prepared: Prepared, model: nn.Module, request: Request, removal: Removal, start: dict[str, Tensor]
    ) -> Request:
        """The request with those retained samples whose loss rose most, so that they resist too."""
        network, left = prepared.network, prepared.known.without(removal.all_gone)
        now = margins(network.task, model, left.ids)
        move(model, start, {})
        risen = (now.losses - left.margins.losses).nan_to_num(nan=torch.inf)
        risen[torch.isin(left.ids, request.retained.ids)] = 0.0  # these resist already
        most = risen.argsort(descending=True)[: min(self.harmed, prepared.most_rows)]
        harmed = left.ids[most[risen[most] > HARM]]
        return request.with_more(network.gradients(model, harmed)) if len(harmed) else request


def why_not_predicted(workspace: Workspace) -> str | None:
    """Why the method is not for such a task; None where it is."""
    task, slices = workspace.task, workspace.slices
    with evaluating(task.model):
        if not has_margins(task, task.model) or not kfac.can_cache(task, task.model, slices):
            return (
                "method predicted is for models that give every sample one class by cross-entropy without label "
                "smoothing"
            )
        if (rows := most_rows(task, task.model, slices)) < FEWEST_ON_TRIAL:
            return (
                f"the model is so large that the gradients of only {rows} samples fit into memory at once, and method "
                f"predicted needs those of {FEWEST_ON_TRIAL}"
            )
    return None


def _found(trial: Trial, answered: Answered) -> tuple[Hold, HeldOutAnswers]:
    """How samples hold the weights, and answers for those that are known by heart, whose loss tells no power."""
    hold, on_trial = trial.straight, trial.on_trial
    predicted = on_trial.forgotten(hold)
    answers = HeldOutAnswers(answered.held_out, predicted, answered.held_out_counts, on_trial.shares)
    return hold if answers.are_needed else trial.bent, answers


def _less_damped(hold: Hold) -> float:
    """By what to multiply the damping, so that samples let go of about what they pulled with at the end: h = 1.

    A hold has to be strong where the damping is too large: then what samples share is moved too far, and what they have
    for themselves not far enough.
    """
    return min(MOST_CHANGE, max(1 / MOST_CHANGE, float(hold.strength**-BY_DAMPING)))


def _request(prepared: Prepared, model: nn.Module, removal: Removal) -> Request:
    """With those of the resisting samples that are not forgotten."""
    left = ~torch.isin(prepared.retained.ids, removal.all_gone)
    forgotten = prepared.network.gradients(model, torch.tensor(removal.ids))
    return Request.of(forgotten, prepared.retained.at(left), prepared.among[left][:, left])


def _go(
    prepared: Prepared, model: nn.Module, start: dict[str, Tensor], request: Request, share: float, rounds: int
) -> None:
    """Move the model to the answers that it should give; where these are predicted, that takes one step."""
    if prepared.by_heart:
        _teach(prepared, model, start, request, share, rounds)
    else:
        step = request.predict(prepared.hold.times(share)(request.forgotten.margins)).step
        move(model, start, prepared.network.block.scatter(step, start))


def _response(
    prepared: Prepared, model: nn.Module, start: dict[str, Tensor], request: Request, removal: Removal
) -> Response | None:
    """The change of the weights to where retained samples have responded, if forgotten ones are known less well there.

    The model is left somewhere near.
    """
    left = prepared.known.without(removal.all_gone)
    if prepared.full_hold is None or not len(left.ids):
        return None
    network, before = prepared.network, request.forgotten
    let_go = prepared.full_hold(before.margins)
    step = request.predict(let_go).step
    move(model, start, network.block.scatter(step, start))
    looked = Looked(left, margins(network.task, model, left.ids))
    forgotten, power = (before.ids, let_go), prepared.full_hold.power
    found = respond(network, model, start, step, forgotten, looked, removal.seed, power, prepared.unseen)
    if found is None or not margins(network.task, model, before.ids).values.mean() < before.margins.values.mean():
        return None
    return found


def _teach(
    prepared: Prepared, model: nn.Module, start: dict[str, Tensor], request: Request, share: float, rounds: int
) -> None:
    """Move the model until it gives answers that held-out samples get; those of retained samples stay."""
    network, before = prepared.network, request.forgotten.margins
    wanted = prepared.answers.instead_of(request.predict(prepared.hold(before)).margins, before.classes)
    wanted = before.values + share * (wanted - before.values)
    move(model, start, {})
    now = request  # at first the model is where the request found it
    aim = kept = margins(network.task, model, request.retained.ids).values
    step = 0.0 * network.block.gather(start)
    for number in range(rounds):
        if number:
            now = Request.of(network.gradients(model, request.forgotten.ids), request.retained, request.among)
            kept = margins(network.task, model, request.retained.ids).values
        missed = wanted - now.forgotten.margins.values, aim - kept
        following = step + now.correction(torch.cat(missed))
        if not bool(following.isfinite().all()):
            break  # as near as numbers tell
        step = following
        move(model, start, network.block.scatter(step, start))


def _said(prepared: Prepared, share: float, *more: str) -> str:
    words = "the answers are those predicted for a model that never saw the samples"
    if prepared.by_heart:
        words = (
            "the model knows its samples by heart, so the answers are those that held-out samples of their class get"
        )
    if share < 1:
        words += f"; the step went {share:.2g} of the way there, to protect the retained samples"
    return "; ".join(filter(None, [words, *more]))
