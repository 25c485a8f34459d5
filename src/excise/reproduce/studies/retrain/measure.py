"""Figure 6: removing most of a training set sample by sample, against retraining, with two weight decays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from excise.curvature.strategies import Cached
from excise.datasets.mnist import load_mnist
from excise.networks.small import logistic
from excise.privacy.gaussian import paper_sigma
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit, plain_sgd, with_weights
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.published_removals import published_removals
from excise.reproduce.parts.removals import all_but, model_after
from excise.reproduce.parts.scores import VALIDATION, accuracies, distance_left, residual_gradient_norm
from excise.task.task import Task
from excise.training.exact import exact_fit
from excise.training.trace import GradientTrace
from excise.unlearning.selection import PerLayer
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
PAPER, SCRIPT, OURS, RETRAINED = "paper", "paper, n of its script", "ours", "retrained"
ACCURACY, SLOPE, LEFT = "validation accuracy", "residual gradient norm", "distance left"
COLLAPSED = 0.3  # a fall at which a series ends
FIRST = (10, 20, 50, 100, 200)
Forget = Callable[[Sequence[int]], nn.Module]


@dataclass(frozen=True)
class Settings:
    """The main text's; training is that of the MNIST regressor in appendix B."""

    per_class: int = 1000
    removals: int = 8000
    runs: int = 8
    weight_decays: tuple[float, ...] = (0.01, 0.1)
    """The second is "a larger regularization"; the paper does not say how large."""
    epochs: int = 50
    learning_rate: float = 0.1
    batch_size: int = 256
    copies: int = 1000
    epsilon: float = 0.1
    delta: float = 0.01
    script_samples: int = 50_000
    """The n of the step and the noise in the published script, which trains on 10,000."""
    request: int = 1
    """Samples in each of our requests."""
    curvature_samples: int = 10_000
    """That our curvature is taken from, at the most."""
    every: int = 500
    """Removals from one measurement, and retraining, to the next; there are more at the beginning."""


def measure(run: Run[Settings]) -> Measured:
    """Validation accuracy, residual gradient norm and distance to retraining, over the removals."""
    settings = run.settings
    decays = {f"{decay:g}": decay for decay in settings.weight_decays}
    series = {name: [_one_run(run, number, decay) for number in range(settings.runs)] for name, decay in decays.items()}
    kinds = (PAPER, SCRIPT, OURS, RETRAINED)
    return {
        "removed": points(settings),
        "samples": 10 * settings.per_class,
        "sigma": {name: [_sigma(settings, decay, n) for n in _counts(settings)] for name, decay in decays.items()},
        "series": {
            name: {kind: {score: [one[kind][score] for one in runs] for score in runs[0][kind]} for kind in kinds}
            for name, runs in series.items()
        },
    }


def points(settings: Settings) -> list[int]:
    """After how many removals the models are measured."""
    first = [count for count in FIRST if count < settings.every]
    return [0, *first, *range(settings.every, settings.removals + 1, settings.every)]


def _counts(settings: Settings) -> tuple[int, int]:
    """The number of samples, and that of the published script."""
    return 10 * settings.per_class, settings.script_samples


def _sigma(settings: Settings, decay: float, samples: int) -> float:
    return paper_sigma(samples=samples, weight_decay=decay, epsilon=settings.epsilon, delta=settings.delta)


def _one_run(run: Run[Settings], number: int, decay: float) -> dict[str, Any]:
    settings, seed = run.settings, 1000 * run.seed + number
    rng = np.random.default_rng([run.seed, number])
    train = drawn_per_class(*load_mnist(run.data_dir / "mnist"), settings.per_class, rng)
    test = TensorDataset(*map(torch.tensor, load_mnist(run.data_dir / "mnist", "test")))
    start = Task(logistic(seed), LOSS, train, test, weight_decay=decay)
    key = f"decay {decay:g}, run {number}"
    fitted = kept_fit(
        run,
        f"{key}, training",
        start,
        seed=seed,
        recorder=True,
        **plain_sgd(settings),
    )
    assert fitted.trace is not None
    order = rng.permutation(len(train))[: settings.removals].tolist()
    where = points(settings)
    states = run.tensors(f"{key}, retrainings", partial(_retrainings, replace(start, model=fitted.model), order, where))
    models = [with_weights(start.model, states[str(count)]) for count in where]
    task = replace(start, model=models[0])

    def score(make: Callable[[], Forget], request: int) -> dict[str, Any]:
        with run.progress(key, settings.removals) as bar:
            return scores_over_removals(task, make(), order, where, models, request=request, told=bar.advance)

    ways = {
        PAPER: partial(_published, task, fitted.trace, settings, seed, None),
        SCRIPT: partial(_published, task, fitted.trace, settings, seed, settings.script_samples),
    }
    outcome = {name: run.step(f"{key}, {name}", partial(score, make, 1)) for name, make in ways.items()}
    ours = partial(_ours, task, settings, seed)
    outcome[OURS] = run.step(f"{key}, {OURS}", partial(score, ours, settings.request))
    outcome[RETRAINED] = run.step(f"{key}, {RETRAINED}", partial(_of_retrained, task, order, where, models))
    return outcome


def drawn_per_class(
    images: NDArray[np.float32], labels: NDArray[np.int64], per_class: int, rng: np.random.Generator
) -> TensorDataset:
    """As many random samples of each class."""
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == label))[:per_class] for label in range(10)])
    return TensorDataset(torch.tensor(images[rows]), torch.tensor(labels[rows]))


def _retrainings(task: Task, order: list[int], where: list[int]) -> dict[str, Any]:
    """Weights at the exact minimum without the first samples of the order, for each of the counts."""
    states = {}
    for count in where:
        kept = all_but(order[:count], len(task.train_set))
        task = replace(task, model=exact_fit(task, ids=kept, tolerance=1e-7).model)
        states[str(count)] = dict(task.model.state_dict())
    return states


def _published(task: Task, trace: GradientTrace, settings: Settings, seed: int, samples: int | None) -> Forget:
    """The published step with its noise, one sample at a time."""
    sigma = _sigma(settings, task.weight_decay, samples or len(task.train_set))
    removals = published_removals(task, trace, copies=settings.copies, sigma=sigma, seed=seed, samples=samples)
    return lambda ids: [removals.forget(sample) for sample in ids][-1]


def _ours(task: Task, settings: Settings, seed: int) -> Forget:
    """Our default step; of a request of many samples every slice may be updated that L-FOCI finds for any of them."""
    count = min(settings.curvature_samples, len(task.train_set))
    selection = PerLayer(share=1.0) if settings.request > 1 else PerLayer()
    unlearner = Unlearner(task, Step(selection, Cached(samples=count)), seed=seed, n_jobs=1)
    return lambda ids: model_after(unlearner, ids)


def scores_over_removals(
    task: Task,
    forget: Forget,
    order: Sequence[int],
    where: Sequence[int],
    retrained: Sequence[nn.Module],
    *,
    request: int = 1,
    told: Callable[[int], object] = lambda _: None,
) -> dict[str, list[float | None]]:
    """Remove samples in their order and score the model after the counts in ``where``, against those retrained there.

    A series ends when accuracy has fallen by ``COLLAPSED``; what would come after it is None.
    """
    columns: dict[str, list[float | None]] = {name: [] for name in (ACCURACY, SLOPE, LEFT)}
    model, done = task.model, 0
    for count, truth in zip(where, retrained, strict=True):
        while done < count:
            asked = order[done : min(done + request, count)]
            model, done = forget(asked), done + len(asked)
            told(len(asked))
        scores = _scores(task, model, order[:count]) | {LEFT: _left(task.model, model, truth, count)}
        for name, column in columns.items():
            column.append(scores[name])
        if not scores[ACCURACY] >= _first(columns) - COLLAPSED:
            break
    gaps: list[float | None] = [None] * (len(where) - len(columns[ACCURACY]))
    return {name: column + gaps for name, column in columns.items()}


def _first(columns: dict[str, list[float | None]]) -> float:
    first = columns[ACCURACY][0]
    assert first is not None
    return first


def _left(before: nn.Module, after: nn.Module, truth: nn.Module, count: int) -> float:
    return distance_left(before, after, truth) if count else 1.0


def _scores(task: Task, model: nn.Module, gone: Sequence[int]) -> dict[str, float]:
    return {
        ACCURACY: accuracies(task, model, gone)[VALIDATION],
        SLOPE: residual_gradient_norm(task, model, gone),
    }


def _of_retrained(task: Task, order: list[int], where: list[int], models: list[nn.Module]) -> dict[str, Any]:
    rows = [_scores(task, model, order[:count]) for count, model in zip(where, models, strict=True)]
    return {name: [row[name] for row in rows] for name in (ACCURACY, SLOPE)}
