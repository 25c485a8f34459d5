"""Noise on the weights of an unlearned model: how much a request asks for, and adding it."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from excise.errors import InputError
from excise.paper import paper_sigma
from excise.privacy import BudgetAccountant, add_noise, analytic_sigma, newton_distance
from excise.slices import Block, trainable
from excise.task import Task, trained_parameters


@dataclass(frozen=True)
class Noise:
    """What the guarantee of noise rests on."""

    as_in_the_paper: bool
    """By the published code's constants and for one sample at a time."""
    lipschitz: float | None
    hessian_lipschitz: float | None
    seed: int | None
    """None for a fresh secret one: whoever knows the seed can subtract the noise again."""
    samples: int | None = None
    """Training samples that the paper's noise is computed for; None for those there are."""

    def sigma(
        self,
        task: Task,
        removed: int,
        epsilon: float | None,
        delta: float | None,
        budget: BudgetAccountant | None = None,
    ) -> float | None:
        """Its standard deviation after so many removals, fixed before the data is looked at; None for no noise."""
        if epsilon is None and delta is None:
            return None
        if epsilon is None or delta is None:
            raise InputError(f"epsilon and delta must be given together, not {epsilon!r} and {delta!r}.")
        samples, decay = len(task.train_set), task.weight_decay
        if self.as_in_the_paper:
            return paper_sigma(samples=self.samples or samples, weight_decay=decay, epsilon=epsilon, delta=delta)
        if self.lipschitz is None or self.hessian_lipschitz is None:
            raise InputError(
                "epsilon needs the constants that its guarantee rests on: pass lipschitz= (L) and hessian_lipschitz= "
                "(M) to Unlearner."
            )
        if decay == 0:
            raise InputError(
                "epsilon needs weight_decay > 0 in the task: without it the bound on the step is infinite."
            )
        if budget is not None:
            copy.deepcopy(budget).spend(epsilon, delta)  # raises if it does not fit, before anything is done
        distance = newton_distance(
            removed=removed,
            samples=samples,
            lipschitz=self.lipschitz,
            hessian_lipschitz=self.hessian_lipschitz,
            strong_convexity=decay,
        )
        return analytic_sigma(distance, epsilon, delta)

    def add(self, model: nn.Module, block: Block, sigma: float, earlier: int) -> None:
        """Blur the block's weights, in place; after other earlier removals a given seed draws other noise."""
        if sigma == 0:
            return
        seed = secrets.randbits(63) if self.seed is None else _mixed(self.seed, earlier)
        generator = torch.Generator().manual_seed(seed)
        start = copy.deepcopy(trainable(model))
        noisy = add_noise(block.gather(start), sigma, generator)
        move(model, start, block.scatter(noisy - block.gather(start), start))


def _mixed(seed: int, earlier: int) -> int:
    return int(np.random.SeedSequence([seed, earlier]).generate_state(1, np.uint64)[0] >> 1)


def move(model: nn.Module, start: dict[str, Tensor], change: dict[str, Tensor]) -> None:
    """Set the weights to where they started, plus a change."""
    with torch.no_grad():
        for name, parameter in trained_parameters(model).items():
            parameter.copy_(start[name] + change[name] if name in change else start[name])
