"""How samples hold the weights, by exchangeability: a retained sample, once forgotten, must look like a held-out one.

A sample that is forgotten lets go of h r^γ, where r = σ(-φ) is how hard it pulled at the end of the training. Neither
number is known beforehand, and none has to be guessed. The strength h: a training is stopped before it has come to
rest, and the curvature is damped. The power γ: the last pull is not what a sample has pulled all along. One that was
learned early hardly pulls any more, one that was never learned pulls as it always did, so that the former let go of
more than r tells. Where all has come to rest γ is 1, and smaller the less a model was trained.

Retained samples are forgotten on trial. The mean loss that they have then tells h: it should be that of held-out
samples. The mean root of the loss, in which samples that were learned well count for more, tells γ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from excise.curvature.margins import Margins
from excise.unlearning.exchangeability import Known
from excise.unlearning.linearised import Gradients, Linearised, Request, kernel_among
from excise.unlearning.response import added_pull, pull

GROUPS = 4  # in which samples are forgotten on trial
LEAST_STRENGTH, MOST_STRENGTH, CLOSE_ENOUGH = 1e-6, 100.0, 1e-2  # of the search for the strength
USUAL_GROWTH, BEYOND = 1.2, 1.5  # powers of what a rise misses its aim by: the strength lies near the first, and below
STRAIGHT = 0.5  # in the logarithm of the strength, over which that of the rise is taken for linear
LEAST_RISE = 1e-9  # share of the aim that counts as none
LEAST_POWER = 0.75  # a smaller one moves samples that were learned well too far, where it is not right


@dataclass(frozen=True)
class Hold:
    """How much samples let go of."""

    strength: float
    """h."""
    power: float = 1.0
    """γ."""

    @property
    def rest(self) -> float:
        """How far the training has come to rest: 1 where the last pull is what samples have pulled all along."""
        return (self.power - LEAST_POWER) / (1 - LEAST_POWER)

    def times(self, share: float) -> Hold:
        """A part of it."""
        return replace(self, strength=share * self.strength)

    def __call__(self, margins: Margins) -> Tensor:
        """What each of these samples lets go of.

        >>> one = torch.ones(1, dtype=torch.double)
        >>> round(Hold(2.0, 0.5)(Margins(0 * one, one, one.long())).item(), 6)  # h √σ(0)
        1.414214
        """
        return self.strength * margins.weights * pull(margins.values, torch.ones_like(margins.weights)) ** self.power


@dataclass(frozen=True)
class OnTrial:
    """Retained samples that can be forgotten on trial, in groups, while the others resist."""

    samples: Gradients
    among: Tensor
    """Their kernel."""
    shares: Tensor
    """Of all retained samples, those that each stands for."""

    @staticmethod
    def of(samples: Gradients, shares: Tensor) -> OnTrial:
        """With their kernel."""
        return OnTrial(samples, kernel_among(samples), shares)

    def forgotten(self, hold: Hold) -> Margins:
        """Their margins, each forgotten together with its group."""
        before = self.samples.margins
        moved = before.values.clone()
        for group in torch.arange(len(before)).tensor_split(min(GROUPS, len(before))):
            others = self._others(group)
            let_go, across = hold(before.at(group)), self.among[group][:, others]
            resisting = before.at(others)
            added = added_pull(self.among[others][:, others], resisting.values, resisting.weights, -(let_go @ across))
            moved[group] += across @ added - self.among[group][:, group] @ let_go
        return Margins(moved, before.weights, before.classes)

    def without(self, gone: Tensor, stay: float) -> OnTrial:
        """Those that are not gone, where of all retained samples such a share stays."""
        left = ~torch.isin(self.samples.ids, gone)
        return OnTrial(self.samples.at(left), self.among[left][:, left], self.shares[left] / stay)

    def request(self, group: Tensor) -> Request:
        """To forget a group, while the others resist."""
        others = self._others(group)
        return Request.of(self.samples.at(group), self.samples.at(others), self.among[others][:, others])

    def _others(self, group: Tensor) -> Tensor:
        others = torch.ones(len(self.samples), dtype=torch.bool)
        others[group] = False
        return others

    def rise(self, hold: Hold, measure: Callable[[Tensor], Tensor]) -> float:
        """By how much a measure of the loss would rise, in the mean over all retained samples."""
        each = measure(self.forgotten(hold).losses) - measure(self.samples.margins.losses)
        return float(self.shares @ each)

    def strong_enough(self, power: float, aim: float, near: float = 1.0) -> Hold:
        """The hold of this power, looked for near a strength, by which the mean loss rises so much."""

        @functools.cache
        def missed(log: float) -> float:
            return math.log(max(self.rise(Hold(math.exp(log), power), torch.clone) / aim, LEAST_RISE))

        least, most = math.log(LEAST_STRENGTH), math.log(MOST_STRENGTH)
        low = high = min(math.log(near), most)
        while not missed(high) >= 0:
            if high == most:
                return Hold(MOST_STRENGTH, power)
            low, high = high, min(high + _beyond(missed(high)), most)
        while missed(low) > 0 and low > least:
            low, high = low - _beyond(missed(low)), low
        if missed(low) >= 0:
            return Hold(math.exp(low), power)
        if high - low < STRAIGHT:
            return Hold(math.exp(low + (high - low) * missed(low) / (missed(low) - missed(high))), power)
        return Hold(math.exp(brentq(missed, low, high, xtol=CLOSE_ENOUGH)), power)

    def bent(self, hold: Hold, aim: float, aim_of_roots: float) -> Hold:
        """The hold by which mean loss and mean root both rise so much, from that of power 1 which does for the loss.

        The root misses its aim about in proportion to the power, so that two of them tell the right one.
        """
        missed = self.rise(hold, torch.sqrt) - aim_of_roots
        if missed >= 0:
            return hold
        least = self.strong_enough(LEAST_POWER, aim, hold.strength)
        exceeded = self.rise(least, torch.sqrt) - aim_of_roots
        if exceeded <= 0:
            return least
        return self.strong_enough(1 + (1 - LEAST_POWER) * missed / (exceeded - missed), aim, least.strength)


def _beyond(missed: float) -> float:
    """How far to go to be past the strength that is looked for."""
    return min(math.log(2), BEYOND * abs(missed) + CLOSE_ENOUGH)


@dataclass(frozen=True)
class Trial:
    """Samples on trial, and what is known of all retained ones: together they tell the hold."""

    on_trial: OnTrial
    losses: Known
    roots: Known
    """The same by the roots of the losses."""
    near: float = 1.0
    """Where the strength is looked for first."""

    @cached_property
    def straight(self) -> Hold:
        """By which forgotten samples have the mean loss of held-out ones, with a power of 1."""
        return self.on_trial.strong_enough(1.0, self._aim, self.near) if self.losses.rise > 0 else Hold(0.0)

    @property
    def bent(self) -> Hold:
        """By which they have their mean root too."""
        straight = self.straight
        return self.on_trial.bent(straight, self._aim, self._aim_of_roots) if straight.strength else straight

    @cached_property
    def tail(self) -> float:
        """How much of the mean loss, once they are forgotten, few of them have: how far the mean root falls short."""
        risen = self.on_trial.rise(self.straight, torch.sqrt)
        return self._aim_of_roots / risen if risen > 0 else math.inf

    def in_full(self, hold: Hold, left: float) -> Hold:
        """So much stronger that forgotten samples lose as much where of that only a share is left by a response.

        The less a model has come to rest, the less of it is made up for (see ``full_response``).
        """
        more = 1 / left ** ((3 + hold.rest) / 4)
        return self.on_trial.strong_enough(hold.power, more * self._aim, hold.strength * more**USUAL_GROWTH)

    @property
    def _aim(self) -> float:
        return self.losses.trust * self.losses.rise

    @property
    def _aim_of_roots(self) -> float:
        return self.losses.trust * self.roots.rise

    def by(self, network: Linearised, model: nn.Module) -> Trial:
        """The same samples in another linear network."""
        samples = network.gradients(model, self.on_trial.samples.ids)
        return replace(self, on_trial=OnTrial.of(samples, self.on_trial.shares), near=1.0)

    def share_of(self, gone: Tensor) -> float:
        """Of the samples on trial, those that are gone."""
        return float(torch.isin(self.on_trial.samples.ids, gone).double().mean())

    def without(self, gone: Tensor) -> Trial:
        """By samples that stay."""
        losses = self.losses.without(gone)
        stay = len(losses.ids) / len(self.losses.ids)
        near = self.straight.strength or self.near
        return Trial(self.on_trial.without(gone, stay), losses, self.roots.without(gone), near)
