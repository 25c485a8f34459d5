"""Appendix B: retraining with batch normalisation dips where the last batch of an epoch is a single sample."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.datasets.cifar import load_cifar, normalised
from excise.errors import InputError
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.published_removals import published_removals, published_sigma
from excise.reproduce.parts.removals import one_at_a_time
from excise.reproduce.parts.scores import is_right
from excise.reproduce.studies.batchnorm.networks import NETWORKS, refusal
from excise.task import objective
from excise.task.parameters import norm, trained_parameters
from excise.task.task import Task, evaluating
from excise.training.batchnorm import reestimate
from excise.training.loop import Fitted, batch_sizes, fit, own_randomness
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
KEPT, JOINED, EVEN = "last batch kept", "lone sample joins (ours)", "even batches"
RETRAININGS = (KEPT, JOINED, EVEN)
OURS, LITERAL, QUIET = "ours", "paper", "paper, without its noise"
UNLEARNED = (OURS, LITERAL, QUIET)
ACCURACY, NORM = "validation accuracy", "residual gradient norm"
LIVELY = 0.5  # momentum of running statistics at which the last batch counts most, to see whether they are the cause


@dataclass(frozen=True)
class Settings:
    """The paper states none; ``published`` has those of its scripts for 1,000 images."""

    network: str = "ResNet-18"
    samples: int = 1000
    removals: int = 100
    offsets: tuple[int, ...] = tuple(range(-31, 33))
    """Which counts are retrained: so far from each at which one sample is left over."""
    runs: int = 3
    batch_size: int = 64
    epochs: int = 200
    learning_rate: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.1
    copies: int = 1000
    epsilon: float = 0.1
    delta: float = 0.01
    validated: int = 10_000


# ---------------------------------------------------------------------------------------------------------- training


def plain_sizes(count: int, size: int) -> list[int]:
    """Sizes of the batches of an epoch as most loops have them: whole ones, and whatever is left.

    >>> plain_sizes(9, 4)
    [4, 4, 1]
    """
    return [min(size, count - low) for low in range(0, count, size)]


def even_sizes(count: int, size: int) -> list[int]:
    """As many batches, of sizes that differ by one at the most.

    >>> even_sizes(9, 4)
    [3, 3, 3]
    """
    return [len(part) for part in np.array_split(np.arange(count), math.ceil(count / size))]


def plain_fit(
    task: Task,
    ids: Tensor,
    sizes: Sequence[int],
    settings: Settings,
    *,
    seed: int,
    lone_first: bool = False,
    lone_steps: bool = True,
) -> nn.Module:
    """``fit``, but with batches of exactly these sizes; samples that they do not cover are left out of the epoch.

    Args:
        task: Model, data and objective.
        ids: The samples to train on.
        sizes: Of the batches of an epoch.
        settings: Epochs, learning rate and momentum.
        seed: Decides the order of the samples, the same as in ``fit``.
        lone_first: Whether the last batch comes first.
        lone_steps: Whether the weights move on a batch of one; if not, only the running statistics do.
    """
    model = copy.deepcopy(task.model).train()
    sizes = list(sizes)[::-1] if lone_first else list(sizes)
    weights = list(trained_parameters(model).values())
    optimizer = torch.optim.SGD(
        weights, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=task.weight_decay
    )
    steps = settings.epochs * len(sizes)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        with own_randomness(generator):
            order = ids[torch.randperm(len(ids), generator=generator)]
            for chosen in order[: sum(sizes)].split(sizes):
                loss = task.losses(model, task.batch(chosen)).mean()
                optimizer.zero_grad()
                loss.backward()
                if lone_steps or len(chosen) > 1:
                    optimizer.step()
                scheduler.step()
    return model.eval()


def our_fit(task: Task, ids: Tensor, settings: Settings, *, seed: int) -> nn.Module:
    """By the package's own training."""
    return fit(task, ids=ids, seed=seed, **_training(settings)).model


def _training(settings: Settings) -> dict[str, Any]:
    return {
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "lr": settings.learning_rate,
        "momentum": settings.momentum,
    }


def with_momentum(model: nn.Module, momentum: float) -> nn.Module:
    """A copy whose running statistics follow each batch by this share."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    return model


# --------------------------------------------------------------------------------------------------------- measuring


def dips(settings: Settings) -> list[int]:
    """The removal counts at which a last batch of one sample is left."""
    return [r for r in range(settings.removals + 1) if (settings.samples - r) % settings.batch_size == 1]


def counts(settings: Settings) -> list[int]:
    """The removal counts that are retrained.

    >>> counts(Settings(samples=1000, removals=50, offsets=(-1, 0, 1)))
    [0, 38, 39, 40]
    """
    found = {dip + offset for dip in dips(settings) for offset in settings.offsets}
    return sorted({0} | {count for count in found if 0 <= count <= settings.removals})


def measure(run: Run[Settings]) -> Measured:
    """Accuracy and gradient norm over the removals, retrained in three ways and unlearned, and what makes the dips."""
    settings = run.settings
    images, labels = load_cifar(run.data_dir / "cifar-10-batches-bin")
    test_images, test_labels = load_cifar(run.data_dir / "cifar-10-batches-bin", "test")
    held_out = slice(0, settings.validated)
    test = TensorDataset(normalised(test_images[held_out]), torch.tensor(test_labels[held_out]))
    runs = []
    for number in range(settings.runs):
        chosen = np.random.default_rng([run.seed, number]).permutation(len(images))[: settings.samples]
        train = TensorDataset(normalised(images[chosen]), torch.tensor(labels[chosen]))
        seed = run.seed * 1000 + number
        model = NETWORKS[settings.network](seed)
        runs.append(_one_run(run, number, Task(model, LOSS, train, test, weight_decay=settings.weight_decay), seed))
    measured: dict[str, Any] = {
        name: {series: [one[series][name] for one in runs] for series in (*RETRAININGS, *UNLEARNED)}
        for name in (ACCURACY, NORM)
    }
    return measured | {
        "removed": counts(settings),
        "last batch": [plain_sizes(settings.samples - r, settings.batch_size)[-1] for r in counts(settings)],
        "dips": dips(settings),
        "true norm": {series: [one[series]["true norm"] for one in runs] for series in RETRAININGS},
        "causes": {name: [one["causes"][name] for one in runs] for name in runs[0]["causes"]},
        "refusal": run.step("a network whose last maps have one pixel", refusal),
        "sigma": published_sigma(settings, settings.samples),
        "batches": len(plain_sizes(settings.samples, settings.batch_size)),
    }


def _one_run(run: Run[Settings], number: int, task: Task, seed: int) -> dict[str, Any]:
    """One training set, from which the samples are removed in the order in which they are stored."""
    settings = run.settings
    outcome: dict[str, Any] = {series: {ACCURACY: [], NORM: [], "true norm": []} for series in RETRAININGS}
    for count in counts(settings):
        found = run.step(f"run {number}, {count} removed", partial(_retrained, task, count, settings, seed))
        for series, scores in found.items():
            for name, value in scores.items():
                outcome[series][name].append(value)
    joined = dict(zip(counts(settings), outcome[JOINED][ACCURACY], strict=True))
    causes = [
        run.step(f"run {number}, causes at {count}", partial(_causes, task, count, joined[count], settings, seed))
        for count in dips(settings)
    ]
    outcome["causes"] = {name: [one[name] for one in causes] for name in causes[0]}
    fitted = kept_fit(run, f"run {number}, training", task, seed=seed, recorder=True, **_training(settings))
    for series in UNLEARNED:
        key = f"run {number}, unlearned, {series}"
        outcome[series] = run.step(key, partial(_unlearned, run, series, task, fitted, seed))
    return outcome


def _retrained(task: Task, count: int, settings: Settings, seed: int) -> dict[str, dict[str, float | None]]:
    """All three ways at one count; where no sample is left over, ours is the plain one."""
    ids = torch.arange(count, settings.samples)
    plain = plain_sizes(len(ids), settings.batch_size)
    found = {KEPT: _scored(task, _or_none(partial(plain_fit, task, ids, plain, settings, seed=seed)), ids, plain)}
    joined = batch_sizes(len(ids), settings.batch_size)
    differs = joined != plain
    found[JOINED] = _scored(task, our_fit(task, ids, settings, seed=seed), ids, joined) if differs else found[KEPT]
    even = even_sizes(len(ids), settings.batch_size)
    found[EVEN] = _scored(task, plain_fit(task, ids, even, settings, seed=seed), ids, even)
    return found


def _or_none(train: Any) -> nn.Module | None:
    """The trained model; None where batch normalisation refuses a batch of one."""
    try:
        model: nn.Module = train()
    except ValueError:
        return None
    return model


def _scored(task: Task, model: nn.Module | None, ids: Tensor, sizes: Sequence[int]) -> dict[str, float | None]:
    if model is None:
        return {ACCURACY: None, NORM: None, "true norm": None}
    norm, true_norm = gradient_norms(task, model, ids, sizes)
    return {ACCURACY: accuracy(task, model), NORM: norm, "true norm": true_norm}


def accuracy(task: Task, model: nn.Module) -> float:
    """On the test set."""
    return float(is_right(model, task.test_set, batch_size=500).double().mean())


def gradient_norms(task: Task, model: nn.Module, ids: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    """The residual gradient norm as published, the mean over batches of the norm of each batch's, and the true one."""
    norms, total = [], None
    with evaluating(model):
        for batch in ids.split(list(sizes)):
            slopes = objective.gradient(task, model, batch)
            norms.append(norm(slopes) / len(batch))
            total = slopes if total is None else {name: total[name] + slopes[name] for name in slopes}
    assert total is not None
    return float(np.mean(norms)), norm(total) / len(ids)


def _causes(task: Task, count: int, joined: float, settings: Settings, seed: int) -> dict[str, float]:
    """What accuracy a batch of one costs against joining it, and what is left of that when one part is taken away."""
    ids = torch.arange(count, settings.samples)
    plain = plain_sizes(len(ids), settings.batch_size)
    lively = replace(task, model=with_momentum(task.model, LIVELY))

    def score(model: nn.Module | None) -> float:
        return math.nan if model is None else accuracy(task, model)

    def trained(of: Task = task, sizes: Sequence[int] = plain, **options: bool) -> nn.Module | None:
        return _or_none(lambda: plain_fit(of, ids, sizes, settings, seed=seed, **options))

    kept = trained()
    at_all = score(kept)
    if kept is not None:
        reestimate(task, kept, ids)
    return {
        "kept": joined - at_all,
        "kept, statistics taken anew": joined - score(kept),
        "kept, statistics only, no step": joined - score(trained(lone_steps=False)),
        "kept, but first in the epoch": joined - score(trained(lone_first=True)),
        f"kept, statistics of momentum {LIVELY:g}": score(our_fit(lively, ids, settings, seed=seed))
        - score(trained(lively)),
        "skipped": joined - score(trained(sizes=plain[:-1])),
    }


def _unlearned(run: Run[Settings], series: str, start: Task, fitted: Fitted, seed: int) -> dict[str, list[float]]:
    """Over the same removals, one after the other, without retraining."""
    settings = run.settings
    task = replace(start, model=fitted.model)
    if series == OURS:
        forget = one_at_a_time(Unlearner(task, "step", batch_statistics="reestimate", seed=seed, n_jobs=1))
    else:
        assert fitted.trace is not None
        sigma = published_sigma(settings, settings.samples) if series == LITERAL else 0.0
        forget = published_removals(task, fitted.trace, copies=settings.copies, sigma=sigma, seed=seed).forget
    wanted = counts(settings)
    found: dict[str, list[float]] = {ACCURACY: [], NORM: []}
    model, ruined = task.model, False
    with run.progress(series, settings.removals) as bar:
        for count in range(wanted[-1] + 1):
            if count and not ruined:
                try:
                    model = forget(count - 1)
                except InputError:  # noise upon noise: what the model says are no numbers any more
                    ruined = True
                bar.advance(1)
            if count in wanted:
                ids = torch.arange(count, settings.samples)
                found[ACCURACY].append(accuracy(task, model))
                sizes = batch_sizes(len(ids), settings.batch_size)
                found[NORM].append(gradient_norms(task, model, ids, sizes)[0])
    return found
