"""Figure 5, left: a thousand removals from a model of MNIST, by the full Hessian, L-FOCI's slices and random ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import objective
from excise.datasets.mnist import load_mnist
from excise.exact import exact_fit
from excise.networks.small import mlp
from excise.paper import paper_sigma
from excise.reproduce.experiment import Experiment, Measured
from excise.reproduce.kept import kept_fit
from excise.reproduce.mnist_claims import (
    FULL,
    LFOCI,
    NOISY,
    NORM,
    NOTES,
    OURS,
    RANDOM,
    RESIDUAL,
    SELECTIONS,
    STEPS,
    VALIDATION,
    draw,
    judge,
)
from excise.reproduce.published_removals import Choose, Numbers, PublishedRemovals, choose_by_lfoci
from excise.reproduce.removals import remove_one_by_one
from excise.reproduce.run import Run
from excise.slices import find_slices, trainable
from excise.task import Task
from excise.training import GradientTrace
from excise.unlearn import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True)
class Settings:
    """Those of appendix B."""

    sizes: tuple[int, ...] = (784, 10)
    """Of the layers, from inputs to classes."""
    samples: int = 60_000
    removals: int = 1000
    runs: int = 10
    """Each removes other samples from the same trained model."""
    weight_decay: float = 0.01
    epochs: int = 50
    learning_rate: float = 0.1
    batch_size: int = 256
    copies: int = 1000
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
        options: dict[str, Any] = {"copies": settings.copies}
        if selection == FULL:
            options = {"selection": "all"}
        elif selection == RANDOM:
            drawn = random_sets([layer.units for layer in find_slices(task.model).layers], sizes, seed)
            options = {"selection": lambda _, __: next(drawn), "copies": 1}
        count = min(settings.curvature_samples, len(task.train_set))
        self._unlearner = Unlearner(task, curvature_samples=count, seed=seed, n_jobs=1, **options)
        self.sizes: list[list[int]] = []

    @property
    def model(self) -> nn.Module:
        """As it is by now."""
        return self._unlearner.model

    def forget(self, sample: int) -> nn.Module:
        """The model with one more sample removed."""
        done = self._unlearner.forget([sample])
        layers = [name.rpartition("[")[0] for name in done.slices]
        self.sizes.append([layers.count(layer.name) for layer in self._unlearner.slices.layers])
        return done.model


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
    training = {
        "epochs": settings.epochs,
        "lr": settings.learning_rate,
        "batch_size": settings.batch_size,
        "momentum": 0.0,
        "schedule": "constant",
        "seed": run.seed,
    }
    fitted = kept_fit(run, "training", start, recorder=True, **training)
    assert fitted.trace is not None
    task = replace(start, model=fitted.model)
    if task.is_convex:
        task = replace(task, model=_kept_exact(run, "to the minimum", task))
    runs = []
    for number in range(settings.runs):
        ids = np.random.default_rng([run.seed, number]).permutation(settings.samples)[: settings.removals].tolist()
        kept = np.setdiff1d(np.arange(settings.samples), ids)
        key = f"run {number}, retrained"
        if task.is_convex:
            retrained = _kept_exact(run, key, task, kept)
        else:
            retrained = kept_fit(run, key, start, ids=kept, **training).model
        runs.append(_one_run(run, number, task, fitted.trace, ids, retrained))
    return _gathered(runs, settings)


def _kept_exact(run: Run[Settings], key: str, task: Task, ids: Any = None) -> nn.Module:
    """The model at the exact minimum, kept with the steps."""
    state = run.tensors(key, lambda: exact_fit(task, ids=ids, tolerance=1e-7).model.state_dict())
    model = copy.deepcopy(task.model)
    model.load_state_dict(state)
    return model.eval()


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
        sigma = noise_of(settings) if steps == NOISY else 0.0
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


def noise_of(settings: Settings) -> float:
    """The published noise."""
    return paper_sigma(
        samples=settings.samples,
        weight_decay=settings.weight_decay,
        epsilon=settings.epsilon,
        delta=settings.delta,
    )


def accuracies(task: Task, model: nn.Module, gone: Sequence[int]) -> dict[str, float]:
    """On what remains of the training set, and on the test set."""
    right = _right(model, task.train_set)
    right_left = int(right.sum()) - int(right[list(gone)].sum())
    return {
        RESIDUAL: right_left / (len(right) - len(gone)),
        VALIDATION: float(_right(model, task.test_set).double().mean()),
    }


def _right(model: nn.Module, data: TensorDataset) -> Tensor:
    images, labels = data.tensors
    with torch.no_grad():
        return torch.cat([model(batch).argmax(1) for batch in images.split(4096)]) == labels


def gradient_norm(task: Task, model: nn.Module, sample: int) -> float:
    """Of the sample's loss, over all weights."""
    return objective.norm(objective.gradient(task, model, [sample]))


def distance_left(before: nn.Module, after: nn.Module, retrained: nn.Module) -> float:
    """Distance to the retrained weights, as a share of what it was: 0 is retrained, 1 is nothing done."""
    truth = _flat(retrained)
    return float((_flat(after) - truth).norm() / (_flat(before) - truth).norm())


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.double().flatten() for weight in trainable(model).values()])


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
        "sigma": noise_of(settings),
        "norm before": [one["norm before"] for one in runs],
        "norm retrained": [one["norm retrained"] for one in runs],
        "largest norm": max(one["largest norm"] for one in runs),
        "retrained": {name: [one["retrained accuracies"][name] for one in runs] for name in (RESIDUAL, VALIDATION)},
    }


LOGISTIC = Experiment(
    name="mnist-logistic",
    title="1,000 removals from logistic regression on MNIST",
    where="Figure 5, left",
    data="all of MNIST",
    published=Settings(),
    settings=Settings(runs=2, curvature_samples=2000),
    quick=Settings(samples=400, removals=6, runs=1, epochs=3, copies=64, curvature_samples=200, every=3),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES
    + """
After SGD the model is brought to the exact minimum by Newton's method, and so is the retrained one: what SGD leaves
undone after 50 epochs is as far as what 1,000 of 60,000 samples change, and distances would mean nothing. Our curvature
is taken from fewer samples than by default (20,000), for the sake of time: with all of them less distance is left.
""",
    size=(13.0, 8.0),
)

TWO_LAYERS = Experiment(
    name="mnist-2nn",
    title="1,000 removals from a two-layer network on MNIST",
    where="Figure 5, left, for the network that the published scripts add",
    data="all of MNIST",
    published=Settings(sizes=(784, 100, 10), curvature_samples=1000),
    settings=Settings(sizes=(784, 100, 10), curvature_samples=1000, runs=2, copies=500),
    quick=Settings(
        sizes=(784, 16, 10), samples=400, removals=6, runs=1, epochs=3, copies=64, curvature_samples=200, every=3
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES
    + """
The paper has no figure for this network; its scripts have the experiment. *Full* with our curvature is a K-FAC step of
all slices, since a full Hessian of 79,510 parameters is not to be had. L-FOCI over all slices together, as in the
paper, hardly looks past the output layer, whose activations tell all about the loss; ours chooses in every layer. How
near a network's weights are to retrained ones says nothing, so there are no distances here; and the retrained network's
accuracies differ from the original's by the chance of SGD more than by the samples.
""",
    size=(11.0, 8.0),
)
