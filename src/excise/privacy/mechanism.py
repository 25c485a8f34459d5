"""Noise on the weights of an unlearned model: how much a request asks for, where it comes from, and adding it."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

from excise._support.checks import choice, require, whole
from excise.errors import InputError
from excise.privacy.accountant import BudgetAccountant
from excise.privacy.arguments import number
from excise.privacy.gaussian import analytic_sigma, newton_distance
from excise.privacy.seeds import claim_seed, warn_of_seed
from excise.slices.slices import Block
from excise.task.parameters import move, trainable
from excise.task.task import Task

_DRAWN_AT_ONCE = 2**18  # variates of noise, which bounds the memory beside the weights


@dataclass(frozen=True)
class Privacy:
    """What the guarantee of noise rests on."""

    lipschitz: float | None = None
    """L, a bound on the norm of every sample's gradient, weight decay included."""
    hessian_lipschitz: float | None = None
    """M, a Lipschitz constant of the loss's Hessian."""
    budget: BudgetAccountant | None = None
    """What all requests together may spend; one that does not fit raises ``RetrainRequired``."""
    noise_seed: int | None = field(default=None, repr=False)
    """None for noise that nobody can draw again. A seed is for tests, as a ``SeededNoiseWarning`` says: whoever knows
    it can subtract the noise. In one process it blurs the same weights only, or none."""
    noise: Literal["worst-case", "certificate"] = "worst-case"
    """By what its size is found: before the data is looked at, from L and M; or from the bound that the request's
    certificate has, which needs no constants and is far smaller, and guarantees less: see ``docs/exact.md``."""
    repeatable: bool = False
    """Whether ``noise_seed`` may blur many models, without a warning. That is no privacy at all, as the difference of
    two such models is free of noise; it is there to reproduce experiments."""

    def __post_init__(self) -> None:
        choice(self.noise, ("worst-case", "certificate"), "noise")
        require(isinstance(self.repeatable, bool), "repeatable", self.repeatable, "True or False")
        if self.noise_seed is not None:
            whole(self.noise_seed, "noise_seed", 0)
            if not self.repeatable:
                warn_of_seed()
        elif self.repeatable:
            raise InputError("repeatable=True needs a noise_seed, since secret noise can't be drawn again; pass one.")
        if self.repeatable and self.budget is not None:
            raise InputError(
                "repeatable=True hides nothing, so there is nothing to count in a budget; pass one of them."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """In plain values, for records; a seed is not among them."""
        return {
            "lipschitz": self.lipschitz,
            "hessian_lipschitz": self.hessian_lipschitz,
            "noise": self.noise,
            "budget": None if self.budget is None else dict(self.budget.total._asdict()),
        }

    def require_room(self, task: Task, epsilon: float, delta: float) -> None:
        """Refuse a request that can't be granted, before anything is done."""
        number(epsilon, "epsilon", positive=True)
        number(delta, "delta", positive=True, below=1)
        if task.weight_decay == 0:
            raise InputError(
                "epsilon needs weight_decay > 0 in the task: without it the bound on the step is infinite."
            )
        if self.budget is not None:
            self.budget.require_room(epsilon, delta)

    def sigma(self, task: Task, removed: int, epsilon: float, delta: float) -> float:
        """Standard deviation of the noise after so many removals, fixed before the data is looked at."""
        if self.lipschitz is None or self.hessian_lipschitz is None:
            raise InputError(
                "epsilon needs the constants that its guarantee rests on: pass privacy=Privacy(lipschitz=..., "
                "hessian_lipschitz=...) to Unlearner, which are L and M."
            )
        self.require_room(task, epsilon, delta)
        distance = newton_distance(
            removed=removed,
            samples=len(task.train_set),
            lipschitz=self.lipschitz,
            hessian_lipschitz=self.hessian_lipschitz,
            strong_convexity=task.weight_decay,
        )
        return analytic_sigma(distance, epsilon, delta)

    def add(self, model: nn.Module, block: Block, sigma: float, earlier: int) -> None:
        """Blur the block's weights, in place; after other earlier removals a given seed draws other noise."""
        if sigma == 0:
            return
        start = copy.deepcopy(trainable(model))
        plain = block.gather(start)
        noisy = add_noise(plain, sigma, self._source(plain, sigma, earlier))
        if not bool(noisy.isfinite().all()):
            raise InputError(
                f"noise of standard deviation {sigma:.4g} is too large for weights of {plain.dtype}, so nothing was "
                "given out or spent; a larger weight_decay, more samples or smaller constants L and M ask for less."
            )
        move(model, start, block.scatter(noisy - plain, start))

    def _source(self, plain: Tensor, sigma: float, earlier: int) -> NoiseSource:
        if self.noise_seed is None:
            return SecretSource()
        if not self.repeatable:
            claim_seed(self.noise_seed, earlier, plain, sigma)
        return seeded_source(self.noise_seed, earlier)


class NoiseSource(Protocol):
    """Where standard normal variates come from: ``SecretSource()``, ``seeded_source(...)``, any numpy ``Generator``."""

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """The next so many variates."""


class SecretSource:
    """Standard normal variates from the operating system's cryptographic source, which nobody can draw again.

    Each takes 53 random bits of its own, so that there is no seed to be found: one for the sign, and 52 for the point
    (k + ½) / 2⁵³ of (0, ½) whose quantile is taken. That is exact in floats, never 0, and as fine in both tails.
    """

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """The next so many variates."""
        words = np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)
        tail = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
        sign = np.where(words & np.uint64(1), 1.0, -1.0)
        variates: NDArray[np.float64] = sign * ndtri(tail)
        return variates


def seeded_source(seed: int, earlier: int = 0) -> np.random.Generator:
    """The same variates each time, other ones after other earlier removals; for tests and reproductions only.

    Whoever knows the seed, or can guess it, can take the noise away, and two models with noise of one seed show the
    difference of their weights. All bits of the seed count.

    >>> seeded_source(1).standard_normal() == seeded_source(1).standard_normal()
    True
    >>> seeded_source(1).standard_normal() == seeded_source(1 + 2**64).standard_normal()
    False
    """
    # as a spawn key, so that no seed after some removals is another one after others
    sequence = np.random.SeedSequence(whole(seed, "noise_seed", 0), spawn_key=(whole(earlier, "earlier", 0),))
    return np.random.Generator(np.random.Philox(sequence))


def add_noise(vector: Tensor, sigma: float, source: NoiseSource) -> Tensor:
    """A copy of the vector with noise N(0, σ²) on every entry.

    It is drawn on the CPU in float64, so that a seed gives the same noise on every device and in every precision. Pass
    a ``SecretSource`` for a guarantee. The theory is of real numbers and leaves out rounding.

    >>> import torch
    >>> add_noise(torch.ones(3), 0.0, SecretSource())
    tensor([1., 1., 1.])
    """
    scale = number(sigma, "sigma")
    if not isinstance(vector, Tensor) or not vector.is_floating_point():
        got = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise InputError(f"vector must be a tensor of floats, not {got}; pass the weights themselves.")
    drawable = callable(getattr(source, "standard_normal", None))
    require(drawable, "source", source, "an object with standard_normal(size)", "pass SecretSource()")
    noisy = vector.clone(memory_format=torch.contiguous_format)
    if scale > 0:
        flat = noisy.view(-1)
        for begin in range(0, len(flat), _DRAWN_AT_ONCE):
            part = flat[begin : begin + _DRAWN_AT_ONCE]
            part += torch.from_numpy(scale * source.standard_normal(len(part))).to(part)
    return noisy
