"""Theorem 1: does repeating the block step converge to the retrained model, and how fast?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.datasets.mnist import load_mnist
from excise.networks.small import logistic
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit, plain_sgd
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.appendix_b import AppendixB
from excise.reproduce.parts.removals import all_but
from excise.reproduce.parts.scores import flat, residual_gradient_norm
from excise.task.task import Task
from excise.training.exact import exact_fit
from excise.training.loop import Fitted
from excise.training.trace import GradientTrace
from excise.unlearning.descent import Descent
from excise.unlearning.paper import PaperStep
from excise.unlearning.selection import AllSlices, PerLayer, SliceSelection
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
RESIDUAL, WHOLE, AGAIN, LITERAL = "ours", "ours, all slices", "one step, again and again", "paper"


@dataclass(frozen=True)
class Settings(AppendixB):
    """Of this experiment; the theorem names none, so those of the MNIST regressor of appendix B are taken."""

    samples: int = 4000
    removed: int = 1
    iterations: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
    """After how many steps the distance is measured."""
    repetitions: int = 16
    """Of the algorithm as printed."""
    runs: int = 5


def measure(run: Run[Settings]) -> Measured:
    """Distance to the retrained optimum after each iteration, as a share of the distance before, and its bound."""
    runs = [_one_run(run, number) for number in range(run.settings.runs)]
    series = runs[0]["left"]
    return {
        "iterations": [0, *run.settings.iterations],
        "repetitions": list(range(run.settings.repetitions + 1)),
        "left": {name: [one["left"][name] for one in runs] for name in series},
        "bound": [one["bound"] for one in runs],
        "slices": [one["slices"] for one in runs],
        "factors": [factor([0, *run.settings.iterations], one["left"][RESIDUAL]) for one in runs],
    }


def _one_run(run: Run[Settings], number: int) -> dict[str, Any]:
    settings = run.settings
    images, labels = load_mnist(run.data_dir / "mnist")
    rng = np.random.default_rng([run.seed, number])
    chosen = rng.permutation(len(images))[: settings.samples]
    train = TensorDataset(torch.tensor(images[chosen]).double(), torch.tensor(labels[chosen]))
    start = Task(logistic(number).double(), LOSS, train, weight_decay=settings.weight_decay)
    fitted = kept_fit(
        run,
        f"run {number}, training",
        start,
        seed=number,
        recorder=True,
        **plain_sgd(settings),
    )
    ids = rng.permutation(settings.samples)[: settings.removed].tolist()
    outcome: dict[str, Any] = run.step(f"run {number}", partial(_distances, start, fitted, ids, settings, number))
    return outcome


def _distances(start: Task, fitted: Fitted, ids: list[int], settings: Settings, seed: int) -> dict[str, Any]:
    """Of all iterates of all four series."""
    optimum = exact_fit(replace(start, model=fitted.model), double=True).model
    task = replace(start, model=optimum)
    truth = flat(exact_fit(task, ids=all_but(ids, settings.samples), double=True).model)
    before = float((flat(optimum) - truth).norm())

    def left(models: Sequence[nn.Module]) -> list[float]:
        return [float((flat(model) - truth).norm()) / before for model in models]

    repeated, bounds, slices = _on_the_residual(task, ids, settings, seed, PerLayer(copies=settings.copies))
    whole, _, _ = _on_the_residual(task, ids, settings, seed, AllSlices())
    again = _repeat(task, settings.repetitions, lambda now: _ours(now, ids, settings, seed))
    literal = _repeat(task, settings.repetitions, lambda now: _paper(now, ids, fitted.trace, seed))
    return {
        "left": {RESIDUAL: left(repeated), WHOLE: left(whole), AGAIN: left(again), LITERAL: left(literal)},
        "bound": [bound / before for bound in bounds],
        "slices": slices,
    }


def _on_the_residual(
    task: Task, ids: list[int], settings: Settings, seed: int, selection: SliceSelection
) -> tuple[list[nn.Module], list[float], int]:
    """Models after 0, 1, 2, ... Newton steps on the objective without the samples, and their certificates."""
    models, bounds, slices = [task.model], [], 0
    for steps in settings.iterations:
        method = Step(selection) if steps == 1 else Descent(selection, steps=steps)
        done = Unlearner(task, method, seed=seed, guard=None).forget(ids)
        assert done.certificate.bound is not None
        models.append(done.model)
        bounds.append(done.certificate.bound)
        slices = max(slices, len(done.slices))
    return models, [_gradient_bound(task, ids), *bounds], slices


def _gradient_bound(task: Task, ids: list[int]) -> float:
    """‖∇F(w; D∖z)‖ / λ at the model before any step."""
    return residual_gradient_norm(task, task.model, ids) / task.weight_decay


def _repeat(task: Task, times: int, step: Callable[[Task], nn.Module]) -> list[nn.Module]:
    models = [task.model]
    for _ in range(times):
        models.append(step(replace(task, model=models[-1])))
    return models


def _ours(task: Task, ids: list[int], settings: Settings, seed: int) -> nn.Module:
    step = Step(PerLayer(copies=settings.copies))
    return Unlearner(task, step, seed=seed, guard=None).forget(ids).model


def _paper(task: Task, ids: list[int], trace: GradientTrace | None, seed: int) -> nn.Module:
    unlearner = Unlearner(task, PaperStep(trace), seed=seed)
    for sample in ids:
        unlearner.forget([sample])
    return unlearner.model


def factor(iterations: Sequence[int], left: Sequence[float]) -> float:
    """By what the distance is multiplied per iteration, in the second half of the iterations.

    >>> round(factor([0, 1, 2, 4, 8], [1, 0.5, 0.25, 0.0625, 0.00390625]), 3)
    0.5
    """
    across = np.asarray(iterations, dtype=float)
    late = across >= across[-1] / 2
    return float(np.exp(np.polyfit(across[late], np.log(np.asarray(left)[late]), 1)[0]))
