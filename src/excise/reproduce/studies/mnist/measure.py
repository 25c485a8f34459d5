"""Figure 5, left: a thousand removals from a model of MNIST, by the full Hessian, L-FOCI's slices and random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.curvature.strategies import Cached
from excise.datasets.mnist import load_mnist
from excise.errors import NothingForgotten
from excise.networks.small import mlp
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_exact, kept_fit, plain_sgd
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.appendix_b import AppendixB
from excise.reproduce.parts.published_removals import (
    Choose,
    Numbers,
    PublishedRemovals,
    choose_by_lfoci,
    published_sigma,
)
from excise.reproduce.parts.removals import all_but, remove_one_by_one
from excise.reproduce.parts.scores import RESIDUAL, VALIDATION, accuracies, distance_left, gradient_norm
from excise.slices.slices import find_slices
from excise.task.task import Task
from excise.training.trace import GradientTrace
from excise.unlearning.selection import AllSlices, PerLayer, SliceSelection, selection_named
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
FULL, LFOCI, RANDOM = "full", "L-FOCI", "random"
SELECTIONS = (LFOCI, RANDOM, FULL)  # L-FOCI first: the random sets are of its sizes
NOISY, QUIET, OURS = "paper", "paper, without its noise", "ours"
STEPS = (NOISY, QUIET, OURS)
NORM = "sample gradient norm"
TOLERANCE = 1e-7  # of the gradient at an exact minimum


@dataclass(frozen=True)
class Settings(AppendixB):
    """Those of appendix B."""

    sizes: tuple[int, ...] = (784, 10)
    """Of the layers, from inputs to classes."""
    samples: int = 60_000
    removals: int = 1000
    runs: int = 10
    """Each removes other samples from the same trained model."""
    epsilon: float = 0.1
    delta: float = 0.01
    curvature_samples: int = 20_000
    """That our curvature is taken from."""
    every: int = 50
    """Removals from one measurement to the next."""


class OurRemovals:
    """Our step, one request for each sample to one unlearner; the random choice gets new slices every time."""

    def __init__(
        self, task: Task, selection: str, settings: Settings, *, sizes: Sequence[Sequence[int]], seed: int
    ) -> None:
        drawn = random_sets([layer.units for layer in find_slices(task.model).layers], sizes, seed)
        ways: dict[str, SliceSelection] = {
            LFOCI: PerLayer(copies=settings.copies),
            RANDOM: selection_named(lambda _, __: next(drawn)),
            FULL: AllSlices(),
        }
        count = min(settings.curvature_samples, len(task.train_set))
        step = Step(ways[selection], Cached(samples=count))
        self._unlearner = Unlearner(task, step, seed=seed, n_jobs=1)
        self.sizes: list[list[int]] = []

    @property
    def model(self) -> nn.Module:
        """As it is by now."""
        return self._unlearner.model

    def forget(self, sample: int) -> nn.Module:
        """The model with one more sample removed."""
        try:
            chosen = self._unlearner.forget([sample]).slices
        except NothingForgotten as error:  # the guard allowed nothing: the model stays as it is
            chosen = error.slices
        layers = [name.rpartition("[")[0] for name in chosen]
        self.sizes.append([layers.count(layer.name) for layer in self._unlearner.slices.layers])
        return self._unlearner.model


def random_sets(groups: Sequence[int], sizes: Sequence[Sequence[int]], seed: int) -> Iterator[Numbers]:
    """Random slices: of each group of slices as many as another choice had, one set after the other.

    >>> [len(numbers) for numbers in random_sets([10, 5], [[2, 1], [0, 4]], seed=0)]
    [3, 4]
    """
    rng = np.random.default_rng([seed, 7])
    lows = np.cumsum([0, *groups])
    for counts in sizes:
        picked = [low + rng.permutation(of)[:count] for low, of, count in zip(lows, groups, counts, strict=False)]
        yield np.concatenate(picked).tolist()


def measure(run: Run[Settings]) -> Measured:
    """Accuracies and the removed sample's gradient norm over the removals, for each step and each choice of slices."""
    settings = run.settings
    images, labels = load_mnist(run.data_dir / "mnist")
    order = np.random.default_rng(run.seed).permutation(len(images))[: settings.samples]
    train = TensorDataset(torch.tensor(images[order]), torch.tensor(labels[order]))
    test = TensorDataset(*map(torch.tensor, load_mnist(run.data_dir / "mnist", "test")))
    start = Task(mlp(run.seed, settings.sizes), LOSS, train, test, weight_decay=settings.weight_decay)
    training = {**plain_sgd(settings), "seed": run.seed}
    fitted = kept_fit(run, "training", start, recorder=True, **training)
    assert fitted.trace is not None
    task = replace(start, model=fitted.model)
    linear = len(find_slices(task.model).layers) == 1  # so that the objective is convex
    if linear:
        task = replace(task, model=kept_exact(run, "to the minimum", task, tolerance=TOLERANCE).model)
    runs = []
    for number in range(settings.runs):
        ids = np.random.default_rng([run.seed, number]).permutation(settings.samples)[: settings.removals].tolist()
        kept = all_but(ids, settings.samples)
        key = f"run {number}, retrained"
        if linear:
            retrained = kept_exact(run, key, task, ids=kept, tolerance=TOLERANCE).model
        else:
            retrained = kept_fit(run, key, start, ids=kept, **training).model
        runs.append(_one_run(run, number, task, fitted.trace, ids, retrained))
    return _gathered(runs, settings)


def _one_run(
    run: Run[Settings], number: int, task: Task, trace: GradientTrace, ids: list[int], retrained: nn.Module
) -> dict[str, Any]:
    """All series of one choice of samples."""
    outcome: dict[str, Any] = {"series": {}}
    for steps in STEPS:
        outcome["series"][steps] = {}
        sizes: list[list[int]] = []
        for selection in SELECTIONS:
            key = f"run {number}, {steps}, {selection}"
            make = partial(_series, run, steps, selection, task, trace, ids, retrained, sizes, run.seed + 1000 * number)
            series = run.step(key, make)
            sizes = series["sizes"] if selection == LFOCI else sizes
            outcome["series"][steps][selection] = series
    outcome |= run.step(f"run {number}, without a step", partial(_references, task, retrained, ids))
    return outcome


def _series(
    run: Run[Settings],
    steps: str,
    selection: str,
    task: Task,
    trace: GradientTrace,
    ids: list[int],
    retrained: nn.Module,
    sizes: Sequence[Sequence[int]],
    seed: int,
) -> dict[str, Any]:
    """One curve: all removals by one step and one choice of slices."""
    settings = run.settings
    removals: PublishedRemovals | OurRemovals
    if steps == OURS:
        removals = OurRemovals(task, selection, settings, sizes=sizes, seed=seed)
    else:
        slices = find_slices(task.model)
        drawn = random_sets([len(slices)], sizes, seed)
        choose: dict[str, Choose] = {
            FULL: lambda _, __: range(len(slices)),
            RANDOM: lambda _, __: next(drawn),
            LFOCI: choose_by_lfoci(task, slices, copies=settings.copies, seed=seed),
        }
        sigma = published_sigma(settings, settings.samples) if steps == NOISY else 0.0
        removals = PublishedRemovals(task, trace, choose[selection], sigma=sigma, seed=seed)
    with run.progress(f"{steps}, {selection}", len(ids)) as bar:
        curves = remove_one_by_one(
            task.model,
            removals.forget,
            ids,
            every=settings.every,
            measure=partial(accuracies, task),
            of_sample=lambda model, sample: {NORM: gradient_norm(task, model, sample)},
            bar=bar,
        )
    return {"curves": curves, "sizes": removals.sizes, "left": distance_left(task.model, removals.model, retrained)}


def _references(task: Task, retrained: nn.Module, ids: list[int]) -> dict[str, Any]:
    """What the removed samples' gradients are before any step, and under the retrained model."""
    before = [gradient_norm(task, task.model, sample) for sample in ids]
    after = [gradient_norm(task, retrained, sample) for sample in ids]
    return {
        "norm before": float(np.mean(before)),
        "norm retrained": float(np.mean(after)),
        "largest norm": float(np.max(before)),
        "retrained accuracies": accuracies(task, retrained, ids),
    }


def _gathered(runs: Sequence[dict[str, Any]], settings: Settings) -> Measured:
    """All runs side by side."""

    def each(steps: str, selection: str) -> dict[str, Any]:
        series = [one["series"][steps][selection] for one in runs]
        curves = {name: [one["curves"][name] for one in series] for name in (RESIDUAL, VALIDATION, NORM)}
        return curves | {
            "left": [one["left"] for one in series],
            "slices": [float(np.sum(one["sizes"], axis=1).mean()) for one in series],
        }

    return {
        "removed": runs[0]["series"][NOISY][LFOCI]["curves"]["removed"],
        "series": {steps: {selection: each(steps, selection) for selection in SELECTIONS} for steps in STEPS},
        "convex": len(settings.sizes) == 2,
        "slices": sum(settings.sizes[1:]),
        "sigma": published_sigma(settings, settings.samples),
        "norm before": [one["norm before"] for one in runs],
        "norm retrained": [one["norm retrained"] for one in runs],
        "largest norm": max(one["largest norm"] for one in runs),
        "retrained": {name: [one["retrained accuracies"][name] for one in runs] for name in (RESIDUAL, VALIDATION)},
    }
