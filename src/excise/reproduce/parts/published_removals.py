"""The published step as its script applies it: sample after sample, each from the weights that the last one left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from excise.activations import observe
from excise.choosing import choose_jointly
from excise.noise import move
from excise.paper import paper_change
from excise.privacy import add_noise
from excise.slices import Slices, find_slices, trainable
from excise.task import Task
from excise.training import GradientTrace

Numbers = Sequence[int]
Choose = Callable[[nn.Module, int], Numbers]


class PublishedRemovals:
    """The published step, removal after removal: each starts from the weights that the last one left, noise included.

    That is how the published code goes about it. The number of samples in the step and in the noise stays that of the
    training set, as there; ``Unlearner(method="paper")`` counts those that are left.

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
        self._noise = torch.Generator().manual_seed(seed)

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
        return choose_jointly([seen], slices, seed=seed, n_jobs=1).numbers

    return choose
