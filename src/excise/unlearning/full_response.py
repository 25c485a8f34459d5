"""How retained samples respond in full: all that a step moves, and by the network as it is.

A linear network, in which some retained samples resist, tells a step that is right to first order (see ``linearised``).
From there a few iterations go towards the minimum over the weights w of

    Σ KL(p₀ ‖ p) / n + δ/2 ‖w - w₀‖² + Σ l ∇φ · (w - w₀) / n.

The first sum is over retained samples, which are held to the answers p₀ that they have; the second is over forgotten
ones, which let go of l (see ``hold``). A Newton step is what this gives for small changes: it is the proximal Bregman
response, to which influence functions are an approximation (Bae et al. 2022). Where nothing is forgotten, the minimum
is where the model is, however it was trained, so that unlike a pass of training it moves no answers of its own accord.

Most retained samples don't notice a request. Those that do are drawn rather than others, by how much harder they pull
after the step, and each counts as often as it stands for.

What forgotten samples let go of is told at w₀. Far from there it is not what moves them any more, and a network that
was hardly trained finds ways to be without it that leave them known. So the weights end hardly farther from w₀ than
the linear network says, and models that have not come to rest are left out (see ``hold``): of these, samples that are
like the forgotten ones would have to become surer, which being held to their answers keeps them from.

What responds gives part of the forgetting back. So some retained samples are forgotten on trial in this way too, and
the hold is made so much stronger that they end up with the loss that exchangeability asks for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from excise._support.sampling import draw_proportionally
from excise.curvature.backwards import pulled_back
from excise.curvature.margins import Margins, margin_of, margins
from excise.curvature.quasi_newton import Value, minimised
from excise.task.parameters import move, trainable, trained_parameters
from excise.task.task import Batch
from excise.unlearning.exchangeability import MOST_OF_SET
from excise.unlearning.hold import GROUPS, Hold, OnTrial
from excise.unlearning.linearised import Linearised
from excise.unlearning.response import pull

ITERATIONS = 3  # more of them give the same, or fit those that were drawn at the cost of the others
FARTHEST = 1.02  # times the length of the step that a change may have: others take back, they don't carry on
DRAWN = 500  # retained samples that are held to their answers
LEAST_LEFT = 0.3  # of the rise of their loss; less than that is no response any more, and more would not help
BATCH = 256  # of these whose activations are kept at once
EVEN = 0.1  # of the mean size by which they are drawn, for those that don't notice
RESPONDED = "retained samples responded in full, which brings back what the step harms"


@dataclass(frozen=True)
class Among:
    """Retained samples among which those that notice are looked for."""

    ids: Tensor
    margins: Margins
    """Before any request."""
    each: float
    """What share of n one of them stands for, if its weight is 1."""

    def without(self, gone: Tensor) -> Among:
        """Those that are not gone."""
        left = ~torch.isin(self.ids, gone)
        return replace(self, ids=self.ids[left], margins=self.margins.at(left))

    def with_smaller_margins(self) -> Among:
        """The half of them that a step may harm."""
        near = self.margins.values.argsort()[: math.ceil(len(self.ids) / 2)].sort().values
        return replace(self, ids=self.ids[near], margins=self.margins.at(near))

    def noticing(self, now: Margins, seed: int) -> Noticing:
        """Those that notice how the model has moved, rather than others; by the margins that all of them have now."""
        weights, ones = self.margins.weights, torch.ones_like(self.margins.weights)
        harder = (pull(now.values, ones) - pull(self.margins.values, ones)).abs().nan_to_num(nan=1.0)
        sizes = weights * (harder + EVEN * harder.mean() + 1e-12)
        which, inclusion = draw_proportionally(sizes, min(DRAWN, len(sizes)), torch.Generator().manual_seed(seed))
        return Noticing(self.ids[which], self.each * weights[which] / inclusion)


@dataclass(frozen=True)
class Noticing:
    """Retained samples that are held to their answers."""

    ids: Tensor
    counts: Tensor
    """How much each counts: its weight and that of those it stands for, as a share of n."""


def respond(
    network: Linearised,
    model: nn.Module,
    start: dict[str, Tensor],
    step: Tensor,
    forgotten: tuple[Tensor, Tensor],
    noticing: Noticing,
) -> bool:
    """Move a model from its start by a step, and from there to where retained samples have responded, if they do.

    Args:
        network: The model as a linear one.
        model: Changed in place.
        start: Its weights before.
        step: On the network's block.
        forgotten: Samples, and what each lets go of.
        noticing: Retained samples.
    """
    move(model, start, {})
    let_go, held = _let_go(network, model, *forgotten), list(_held(network, model, noticing))
    objective = _Objective(network, model, start, FARTHEST * float(step.norm()), let_go, held)
    found = minimised(objective, step, network.precondition, ITERATIONS)
    move(model, start, network.block.scatter(found, start))
    return found is not step


@dataclass(frozen=True)
class _Objective:
    """What is minimised, as a function of the change of the weights on the network's block."""

    network: Linearised
    model: nn.Module
    start: dict[str, Tensor]
    farthest: float
    """How long a change may be."""
    let_go: Tensor
    """Σ l ∇φ / n."""
    answers: list[tuple[Batch, Tensor, Tensor]]
    """Retained samples in batches, with log p₀ and how much each counts."""

    def __call__(self, change: Tensor) -> Value:
        network = self.network
        if change.norm() > self.farthest:
            return math.inf, change
        move(self.model, self.start, network.block.scatter(change, self.start))
        value = network.damping / 2 * float(change @ change) + float(self.let_go @ change)
        gradient = network.damping * change + self.let_go
        for batch, before, counts in self.answers:
            with torch.enable_grad():
                now = network.task.outputs(self.model, batch)[0].log_softmax(1)
                divergences = _divergences(before, now)
            value += float(divergences.detach() @ counts)
            gradient = gradient + _gradient(network, self.model, divergences, counts)
        return value, gradient


def share_left(network: Linearised, model: nn.Module, on_trial: OnTrial, hold: Hold, among: Among, seed: int) -> float:
    """Of the loss by which a linear network says that forgotten samples rise, what is left when others respond."""
    trial, start, samples = copy.deepcopy(model), copy.deepcopy(trainable(model)), on_trial.samples
    together = min(len(samples) // 2, max(len(samples) // GROUPS, int(MOST_OF_SET * len(network.task.train_set))))
    group = torch.arange(max(1, together))
    ids, before, shares = samples.ids[group], samples.margins.at(group), on_trial.shares[group]
    let_go, left = hold(before), among.without(ids)
    predicted = on_trial.request(group).predict(let_go)
    move(trial, start, network.block.scatter(predicted.step, start))
    noticing = left.noticing(margins(network.task, trial, left.ids), seed)
    if not len(noticing.ids) or not respond(network, trial, start, predicted.step, (ids, let_go), noticing):
        return 1.0
    said = float(shares @ (replace(before, values=predicted.margins).losses - before.losses))
    risen = float(shares @ (margins(network.task, trial, ids).losses - before.losses))
    return min(1.0, max(LEAST_LEFT, risen / said)) if said > 0 and math.isfinite(risen) else 1.0


def _held(network: Linearised, model: nn.Module, noticing: Noticing) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """The samples with the answers that they have now, read once."""
    for some, batch in _batches(network, noticing.ids):
        with torch.no_grad():
            answers = network.task.outputs(model, batch)[0].log_softmax(1)
        yield batch, answers, noticing.counts[some].to(answers)


def _divergences(before: Tensor, now: Tensor) -> Tensor:
    """KL(p₀ ‖ p) of each row of log-probabilities; classes that the model rules out add nothing."""
    ruled_out = before == -torch.inf
    before, now = before.masked_fill(ruled_out, 0.0), now.masked_fill(ruled_out, 0.0)
    return (before.exp() * (before - now)).sum(1)


def _let_go(network: Linearised, model: nn.Module, ids: Tensor, amounts: Tensor) -> Tensor:
    """Σ l ∇φ / n of these samples."""

    def of_batch(some: Tensor, batch: Batch) -> Tensor:
        with torch.enable_grad():
            outputs, targets = network.task.outputs(model, batch)
            found = margin_of(outputs, network.task.plain_targets(targets))
        return _gradient(network, model, found, amounts[some].to(outputs)) / network.mass

    return torch.stack([of_batch(*part) for part in _batches(network, ids)]).sum(0)


def _batches(network: Linearised, ids: Tensor) -> Iterator[tuple[Tensor, Batch]]:
    """Which of the samples, and these, batch by batch."""
    size = network.task.batch_size_within_memory(BATCH)
    return zip(torch.arange(len(ids)).split(size), network.task.batches(ids, size), strict=True)


def _gradient(network: Linearised, model: nn.Module, figures: Tensor, counts: Tensor) -> Tensor:
    """Of the samples' figures, each counting so much, on the network's block."""
    weights = trained_parameters(model)
    found = pulled_back(figures, list(weights.values()), counts)
    return network.block.gather(dict(zip(weights, found, strict=True)))
