"""The published step as its script applies it: sample after sample, each from the weights that the last one left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from excise.privacy.gaussian import paper_sigma
from excise.privacy.mechanism import add_noise, seeded_source
from excise.slices.activations import observe
from excise.slices.slices import Slices, find_slices
from excise.task.parameters import move, trainable
from excise.task.task import Task
from excise.training.trace import GradientTrace
from excise.unlearning.blankets import blanket_of_all
from excise.unlearning.paper import paper_change

Numbers = Sequence[int]
Choose = Callable[[nn.Module, int], Numbers]


class Noisy(Protocol):
    """Settings that the published noise follows from."""

    @property
    def weight_decay(self) -> float:
        """λ."""

    @property
    def epsilon(self) -> float:
        """ε."""

    @property
    def delta(self) -> float:
        """δ."""


def published_sigma(settings: Noisy, samples: int) -> float:
    """The standard deviation of the published noise for a training set of so many samples."""
    return paper_sigma(
        samples=samples, weight_decay=settings.weight_decay, epsilon=settings.epsilon, delta=settings.delta
    )


class PublishedRemovals:
    """The published step, removal after removal: each starts from the weights that the last one left, noise included.

    That is how the published code goes about it. The number of samples in the step and in the noise stays that of the
    training set, as there; ``PaperStep`` counts those that are left.

    Args:
        task: The model, its loss and its data; nothing in it is changed.
        trace: The gradients of the last two epochs.
        choose: (model, sample) -> the slices to update.
        sigma: Standard deviation of the noise.
        seed: Of the noise.
        samples: How many the model is said to be trained on; None for the size of the training set.
    """

    def __init__(
        self,
        task: Task,
        trace: GradientTrace,
        choose: Choose,
        *,
        sigma: float = 0.0,
        seed: int = 0,
        samples: int | None = None,
    ) -> None:
        self.model = copy.deepcopy(task.model).eval()
        self.slices = find_slices(self.model)
        self.sizes: list[list[int]] = []
        self._task, self._trace, self._choose, self._sigma = task, trace, choose, sigma
        self._samples = len(task.train_set) if samples is None else samples
        self._noise = seeded_source(seed)

    def forget(self, sample: int) -> nn.Module:
        """The model with one more sample removed; it is the same object every time."""
        numbers = self._choose(self.model, sample)
        self.sizes.append([len(numbers)])
        block = self.slices.block(numbers)
        change = paper_change(self._task, self.model, block, sample, self._trace, self._samples)
        if self._sigma > 0:
            change = add_noise(change, self._sigma, self._noise)
        start = copy.deepcopy(trainable(self.model))
        move(self.model, start, block.scatter(change, start))
        return self.model


def choose_by_lfoci(task: Task, slices: Slices, *, copies: int, seed: int) -> Choose:
    """The paper's choice: L-FOCI over all slices together, from perturbed copies of the sample."""

    def choose(model: nn.Module, sample: int) -> Numbers:
        generator = torch.Generator().manual_seed(seed)
        seen = observe(task, model, slices, sample, copies=copies, perturbation=None, generator=generator)
        return blanket_of_all([seen], slices, seed=seed, n_jobs=1).numbers

    return choose


def published_removals(
    task: Task, trace: GradientTrace, *, copies: int, sigma: float, seed: int, samples: int | None = None
) -> PublishedRemovals:
    """The published step with its own choice of slices."""
    choose = choose_by_lfoci(task, find_slices(task.model), copies=copies, seed=seed)
    return PublishedRemovals(task, trace, choose, sigma=sigma, seed=seed, samples=samples)
