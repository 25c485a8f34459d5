"""How retained samples respond in full: all that a step moves, and by the network as it is.

A linear network, in which some retained samples resist, tells a step that is right to first order (see ``linearised``).
From there some iterations go towards the minimum over the weights w of

    Σ (ℓ - ∇ℓ(w₀) · (w - w₀)) / n + δ/2 ‖w - w₀‖² + Σ l ∇φ · (w - w₀) / n.

The first sum is over retained samples. Their loss ℓ is the one by which they pull as the hold has it (cross-entropy,
where all has come to rest). It is tilted, so that it has no slope where the model is: a training
that was stopped early, or made on crops of the samples, is neither taken up again nor undone, and where nothing is
forgotten nothing moves. The second sum is over forgotten samples, which let go of l (see ``hold``). A Newton step is
what this gives for small changes. Holding retained samples to their answers instead (the proximal Bregman response of
Bae et al. 2022) is the same in a linear network; in a real one it keeps samples unsure that only the forgotten ones
made so.

Most retained samples don't notice a request. Those of small margins may, so that these are looked at rather than
others; and of these, those are drawn that pull harder or weaker after the step. Each counts as often as it stands for.
There are as many iterations as it takes to gain a good part of what the step promises. Where the network is nearly the
linear one two or three do, and more would fit the samples that were drawn at the cost of others. Where it is not, as
with batch normalisation, a step of that length may be far worse than none: it is halved until it is not, and what it
harms takes more iterations to mend.

Where few samples are left that the model is unsure of, retained ones could become ever surer, as no training would make
them. So where held-out samples have more loss than before, the response goes no farther than they say: of some points
on the way from the step to it, one is taken where their loss is less. Both must be more than chance.

What forgotten samples let go of is told at w₀. Far from there it is not what moves them any more, and the tilt, too, is
right near w₀ only: beyond, the model would train on. So the weights end hardly farther from w₀ than the step does.

What responds gives part of the forgetting back. So some retained samples are forgotten on trial in this way too, and
the hold is made so much stronger that they end up with the loss that exchangeability asks for. Of a model that has not
come to rest it is made stronger by less: there a part of what is given back had come by the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from excise._support.sampling import draw_proportionally
from excise.curvature.backwards import pulled_back
from excise.curvature.margins import Margins, margin_of, margins
from excise.curvature.quasi_newton import Value, minimised
from excise.task.parameters import move, trainable, trained_parameters
from excise.task.task import Batch, Task
from excise.unlearning.exchangeability import MOST_OF_SET
from excise.unlearning.hold import GROUPS, Hold, OnTrial
from excise.unlearning.linearised import Linearised
from excise.unlearning.response import pull

FEWEST_ITERATIONS, MOST_ITERATIONS = 2, 10
ENOUGH = 0.4  # of the slope along the step, that is gained; a parabola has 0.5 to gain
WORSE = 4.0  # times that slope: a step is halved while it would lose more
FARTHEST = 1.25  # times the length of the step that a change may have
SHARE_DRAWN, LEAST_DRAWN, MOST_DRAWN = 0.125, 500, 1000  # of the training set: retained samples that respond
LOOKED_AT = 1500  # retained samples among which those that respond are drawn
HARDLY = 0.02  # of the largest size by which these are drawn, for those that are surest
HELD_OUT = 500  # samples that tell how much of a response helps
SHARES, CHANCE = (0.7, 0.4), 1.0  # of a response that are tried, and standard deviations beyond which it is not chance
LEAST_LEFT = 0.3  # of the rise of their loss; less than that is no response any more, and more would not help
BATCH = 256  # of these that are held in memory at once
EVEN = 0.1  # of the mean size by which they are drawn, for those that don't notice
MOST_MARGIN = 80.0  # beyond which a negative one counts as this one, since its exponential is too large
RESPONDED = "retained samples responded in full, which brings back what the step harms"


@dataclass(frozen=True)
class Among:
    """Samples that stand for all: retained ones among which those that notice are looked for, or held-out ones."""

    ids: Tensor
    margins: Margins
    """Before any request."""
    shares: Tensor
    """Of n, what each stands for, if its weight is 1."""

    def at(self, which: Tensor) -> Among:
        """Some of them."""
        return Among(self.ids[which], self.margins.at(which), self.shares[which])

    def without(self, gone: Tensor) -> Among:
        """Those that are not gone."""
        return self.at(~torch.isin(self.ids, gone))

    def with_smaller_margins(self) -> Among:
        """The half of them that a step may harm."""
        near = self.margins.values.argsort()[: math.ceil(len(self.ids) / 2)]
        return self.at(near.sort().values)

    def drawn(self, count: int, seed: int) -> Among:
        """So many, which stand for all: by how hard they pull, or rather its root, since a step makes that larger."""
        if count >= len(self.ids):
            return self
        pulls = pull(self.margins.values, torch.ones_like(self.margins.weights))
        sizes = self.margins.weights * (pulls.sqrt() + HARDLY)
        which, inclusion = draw_proportionally(sizes, count, torch.Generator().manual_seed(seed))
        some = self.at(which)
        return replace(some, shares=some.shares / inclusion)


@dataclass(frozen=True)
class Looked:
    """These samples, as they look after a step."""

    among: Among
    now: Margins

    def noticing(self, count: int, seed: int) -> Noticing:
        """So many of those that notice how the model has moved, rather than others."""
        before, shares = self.among.margins, self.among.shares
        ones = torch.ones_like(before.weights)
        harder = (pull(self.now.values, ones) - pull(before.values, ones)).abs().nan_to_num(nan=1.0)
        usual = (shares @ harder) / shares.sum()
        sizes = before.weights * shares * (harder + EVEN * usual + 1e-12)
        which, inclusion = draw_proportionally(sizes, min(count, len(sizes)), torch.Generator().manual_seed(seed))
        return Noticing(self.among.ids[which], shares[which] * before.weights[which] / inclusion)


@dataclass(frozen=True)
class Noticing:
    """Retained samples that are held to their answers."""

    ids: Tensor
    counts: Tensor
    """How much each counts: its weight and that of those it stands for, as a share of n."""


@dataclass(frozen=True)
class Response:
    """How the weights change, on the network's block."""

    change: Tensor
    share: float = 1.0
    """Of the way from the step to where all have responded, that held-out samples let it go."""

    @property
    def said(self) -> str:
        """In words."""
        if self.share == 1:
            return RESPONDED
        return (
            f"retained samples responded, {self.share:.0%} of the way, since held-out samples lose by more; that "
            "brings back what the step harms"
        )


def respond(
    network: Linearised,
    model: nn.Module,
    start: dict[str, Tensor],
    step: Tensor,
    forgotten: tuple[Tensor, Tensor],
    looked: Looked,
    seed: int,
    power: float = 1.0,
    unseen: Among | None = None,
) -> Response | None:
    """Move a model from its start by a step, and from there to where retained samples have responded.

    None where nobody responds.

    Args:
        network: The model as a linear one.
        model: Changed in place.
        start: Its weights before.
        step: On the network's block.
        forgotten: Samples, and what each lets go of.
        looked: Retained samples, some of which notice, after a step such as this.
        seed: For drawing those that notice.
        power: γ of the hold.
        unseen: Held-out samples, by which it is seen how far to go; without them it is all the way.
    """
    noticing = looked.noticing(_drawn(network), seed)
    if not len(noticing.ids):
        return None
    move(model, start, {})
    let_go, held = _let_go(network, model, *forgotten), _Held.of(network, model, noticing, power)
    objective = _Objective(network, model, start, FARTHEST * float(step.norm()), let_go, held)
    slope = float(let_go @ step)
    found = minimised(
        objective,
        step,
        network.precondition,
        MOST_ITERATIONS,
        fewest=FEWEST_ITERATIONS,
        enough=ENOUGH * slope,
        highest=-WORSE * slope,
    )
    ends = step, found
    share = 1.0 if unseen is None else _as_far_as_helps(network, model, start, ends, unseen)
    response = Response(torch.lerp(*ends, share), share)
    move(model, start, network.block.scatter(response.change, start))
    return response


def _as_far_as_helps(
    network: Linearised, model: nn.Module, start: dict[str, Tensor], ends: tuple[Tensor, Tensor], unseen: Among
) -> float:
    """All of the response; if held-out samples clearly lose by it, a share of it by which they lose less."""

    def losses_at(share: float) -> Tensor:
        move(model, start, network.block.scatter(torch.lerp(*ends, share), start))
        return margins(network.task, model, unseen.ids, network.task.test_set).losses

    def beyond_chance(more: Tensor) -> float:
        total = float(unseen.shares @ more)
        by_chance = float((unseen.shares * (more - total / unseen.shares.sum())).norm())
        return total if total > CHANCE * by_chance else 0.0

    after, best, most = losses_at(1.0), 1.0, 0.0
    if not beyond_chance(after - unseen.margins.losses):
        return 1.0
    for share in SHARES:
        gained = beyond_chance(after - losses_at(share))
        if gained > most:
            best, most = share, gained
    return best


def _drawn(network: Linearised) -> int:
    """How many respond: a share of the training set, so that a request stays cheap beside training."""
    return max(LEAST_DRAWN, min(MOST_DRAWN, int(SHARE_DRAWN * len(network.task.train_set))))


@dataclass(frozen=True)
class _Held:
    """Retained samples that notice; their loss before, and its gradient."""

    task: Task
    """Of these samples alone, which are read once where memory can hold them."""
    counts: Tensor
    power: float
    loss: float
    slope: Tensor

    @staticmethod
    def of(network: Linearised, model: nn.Module, noticing: Noticing, power: float) -> _Held:
        task, counts = network.task.only(noticing.ids), noticing.counts
        return _Held(task, counts, power, *_loss(network, task, model, counts, power))


def loss_of(margins: Tensor, power: float) -> Tensor:
    """The loss of retained samples, whose slope is -γ r - (1 - γ) √r: nearly the r^γ that forgotten ones let go of.

    >>> [round(loss_of(torch.zeros(1), power).item(), 4) for power in (1.0, 0.0)]  # log 2, and 2 asinh 1
    [0.6931, 1.7627]
    """
    rooted = 2 * torch.asinh(torch.exp(-margins.clamp(min=-MOST_MARGIN) / 2)) if power < 1 else 0.0
    return power * functional.softplus(-margins) + (1 - power) * rooted


def _loss(network: Linearised, task: Task, model: nn.Module, counts: Tensor, power: float) -> Value:
    """Of the task's samples, each counting so much, and its gradient."""
    values, slopes = [], []
    for some, batch in _batches(task, task.all_ids):
        with torch.enable_grad():
            outputs, targets = task.outputs(model, batch)
            losses = loss_of(margin_of(outputs, task.plain_targets(targets)), power)
        counted = counts[some].to(losses)
        values.append(float(losses.detach().double() @ counted.double()))
        slopes.append(_gradient(network, model, losses, counted))
    return sum(values), torch.stack(slopes).sum(0)


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
    held: _Held

    def __call__(self, change: Tensor) -> Value:
        network = self.network
        if change.norm() > self.farthest:
            return math.inf, change
        move(self.model, self.start, network.block.scatter(change, self.start))
        held = self.held
        loss, slope = _loss(network, held.task, self.model, held.counts, held.power)
        tilt = self.let_go - held.slope
        value = loss - held.loss + network.damping / 2 * float(change @ change) + float(tilt @ change)
        return value, slope + network.damping * change + tilt


def share_left(
    network: Linearised,
    model: nn.Module,
    on_trial: OnTrial,
    hold: Hold,
    among: Among,
    seed: int,
    unseen: Among | None = None,
) -> float:
    """Of the loss by which a linear network says that forgotten samples rise, what is left when others respond.

    It is told by how far their margins fall: few samples make up most of a loss, so that it would tell less exactly.
    """
    trial, start, samples = copy.deepcopy(model), copy.deepcopy(trainable(model)), on_trial.samples
    together = min(len(samples) // 2, max(len(samples) // GROUPS, int(MOST_OF_SET * len(network.task.train_set))))
    group = torch.arange(max(1, together))
    ids, before, shares = samples.ids[group], samples.margins.at(group), on_trial.shares[group]
    let_go, left = hold(before), among.without(ids)
    predicted = on_trial.request(group).predict(let_go)
    move(trial, start, network.block.scatter(predicted.step, start))
    looked = Looked(left, margins(network.task, trial, left.ids))
    if (
        not len(left.ids)
        or respond(network, trial, start, predicted.step, (ids, let_go), looked, seed, hold.power, unseen) is None
    ):
        return 1.0
    said, counts = predicted.margins - before.values, shares * let_go
    fallen = float(counts @ (margins(network.task, trial, ids).values - before.values))
    if not counts @ said < 0 or not math.isfinite(fallen):
        return 1.0

    def rise(share: float) -> float:
        return float(shares @ (replace(before, values=before.values + share * said).losses - before.losses))

    return min(1.0, max(LEAST_LEFT, rise(fallen / float(counts @ said)) / rise(1.0)))


def _let_go(network: Linearised, model: nn.Module, ids: Tensor, amounts: Tensor) -> Tensor:
    """Σ l ∇φ / n of these samples."""

    def of_batch(some: Tensor, batch: Batch) -> Tensor:
        with torch.enable_grad():
            outputs, targets = network.task.outputs(model, batch)
            found = margin_of(outputs, network.task.plain_targets(targets))
        return _gradient(network, model, found, amounts[some].to(outputs)) / network.mass

    return torch.stack([of_batch(*part) for part in _batches(network.task, ids)]).sum(0)


def _batches(task: Task, ids: Tensor) -> Iterator[tuple[Tensor, Batch]]:
    """Which of the samples, and these, batch by batch."""
    size = task.batch_size_within_memory(BATCH)
    return zip(torch.arange(len(ids)).split(size), task.batches(ids, size), strict=True)


def _gradient(network: Linearised, model: nn.Module, figures: Tensor, counts: Tensor) -> Tensor:
    """Of the samples' figures, each counting so much, on the network's block."""
    weights = trained_parameters(model)
    found = pulled_back(figures, list(weights.values()), counts)
    return network.block.gather(dict(zip(weights, found, strict=True)))
