"""Lemma 1: how fast does the block step's residual gradient approach that of a full Newton step, as the data grows?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.datasets.mnist import load_mnist
from excise.networks.small import logistic
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_exact, kept_fit, plain_sgd
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.appendix_b import AppendixB
from excise.reproduce.parts.removals import all_but, model_after
from excise.reproduce.studies.full_hessian.regression import SoftmaxRegression
from excise.slices.activations import observe
from excise.slices.slices import find_slices
from excise.task.task import Task
from excise.training.exact import exact_fit
from excise.training.trace import GradientTrace
from excise.unlearning.blankets import blanket_of_all
from excise.unlearning.descent import Descent
from excise.unlearning.paper import PaperStep
from excise.unlearning.selection import at_random
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
BEFORE, FULL, FOCI, RANDOM, PAPER, OURS, DESCENT = (
    "before",
    "full",
    "L-FOCI",
    "random",
    "paper",
    "ours",
    "ours, 8 steps",
)

CHOSEN, OTHERS = "L-FOCI, chosen slices", "L-FOCI, other slices"
CHUNK = 4  # removals in one step of the run


@dataclass(frozen=True)
class Settings(AppendixB):
    """Of this experiment; the lemma names none, so those of the MNIST regressor of appendix B are taken."""

    sizes: tuple[int, ...] = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
    removed: int = 12
    """Samples, each removed alone, from every training set."""
    retrained_up_to: int = 5000
    """Size of the largest training set for which retrained optima, and our own rules, are computed."""


def measure(run: Run[Settings]) -> Measured:
    """Norms of the residual gradients, those of the removed sample's, and distances, for every size and sample."""
    sizes, removed = list(run.settings.sizes), run.settings.removed
    images, labels = load_mnist(run.data_dir / "mnist")
    order = np.random.default_rng([run.seed, 0]).permutation(len(images))[: max(sizes)]
    images, labels = images[order], labels[order]  # the smaller sets are the beginning of the larger
    ids = np.random.default_rng([run.seed, 1]).permutation(min(sizes))[:removed].tolist()
    rows = {size: _removals(run, images[:size], labels[:size], ids) for size in sizes}

    def table(kind: str, name: str) -> list[list[float]]:
        return [[row[kind][name] for row in rows[size]] for size in sizes if name in rows[size][0][kind]]

    few = [size for size in sizes if size <= run.settings.retrained_up_to]
    return {
        "sizes": sizes,
        "sizes_retrained": few,
        "norms": {name: table("norms", name) for name in rows[sizes[0]][0]["norms"]},
        "sample_norms": {name: table("sample_norms", name) for name in rows[sizes[0]][0]["sample_norms"]},
        "left": {name: table("left", name) for name in rows[few[0]][0]["left"]},
        "slices": [[row["slices"] for row in rows[size]] for size in sizes],
        "same_block": [[row["same_block"] for row in rows[size]] for size in sizes],
    }


def _removals(run: Run[Settings], images: Any, labels: Any, ids: list[int]) -> list[dict[str, Any]]:
    """What each sample's removal from this training set does."""
    settings, size = run.settings, len(images)
    single = Task(
        logistic(run.seed),
        LOSS,
        TensorDataset(torch.tensor(images), torch.tensor(labels)),
        weight_decay=settings.weight_decay,
    )
    fitted = kept_fit(
        run,
        f"{size} images, training",
        single,
        seed=run.seed,
        recorder=True,
        **plain_sgd(settings),
    )
    start = replace(
        single,
        model=fitted.model.double(),
        train_set=TensorDataset(torch.tensor(images).double(), torch.tensor(labels)),
    )
    start = replace(start, model=kept_exact(run, f"{size} images, optimum", start, double=True).model)
    assert fitted.trace is not None
    rows: list[dict[str, Any]] = []
    for low in range(0, len(ids), CHUNK):
        chunk = partial(_remove_some, start, fitted.trace, ids[low : low + CHUNK], settings, run.seed)
        rows += run.step(f"{size} images, removals from {low}", chunk)
    return rows


def _remove_some(
    task: Task, trace: GradientTrace, ids: list[int], settings: Settings, seed: int
) -> list[dict[str, Any]]:
    inputs, labels = task.train_set.tensors
    ones = torch.ones(len(inputs), 1, dtype=torch.float64)
    regression = SoftmaxRegression(torch.cat([inputs, ones], dim=1), labels, settings.weight_decay)
    return [_remove(task, regression, trace, sample, settings, seed) for sample in ids]


def _remove(
    task: Task, regression: SoftmaxRegression, trace: GradientTrace, sample: int, settings: Settings, seed: int
) -> dict[str, Any]:
    """Norms and distances after each way to remove one sample."""
    slices = find_slices(task.model)
    own = int(np.random.default_rng([seed, sample, len(task.train_set)]).integers(2**31))
    generator = torch.Generator().manual_seed(own)
    watched = observe(task, task.model, slices, sample, copies=settings.copies, perturbation=None, generator=generator)
    picked = blanket_of_all([watched], slices, seed=own)
    other = at_random(picked, slices, seed=own)
    before = _matrix(task.model)
    after = {
        BEFORE: before,
        FULL: regression.newton(before, sample, range(len(slices))),
        FOCI: regression.newton(before, sample, picked.numbers),
        RANDOM: regression.newton(before, sample, other.numbers),
        PAPER: _matrix(Unlearner(task, PaperStep(trace), seed=own, n_jobs=1).forget([sample]).model),
    }
    left: dict[str, float] = {}
    if len(task.train_set) <= settings.retrained_up_to:
        after[OURS] = _matrix(model_after(Unlearner(task, "step", seed=own, n_jobs=1), [sample]))
        after[DESCENT] = _matrix(Unlearner(task, Descent(steps=8), seed=own, n_jobs=1).forget([sample]).model)
        left = _shares_left(task, after, sample)
    slopes = {name: regression.slope(weights, sample) for name, weights in after.items()}
    chosen = torch.zeros(len(slices), dtype=torch.bool)
    chosen[list(picked.numbers)] = True
    return {
        "norms": {name: float(slope.norm()) for name, slope in slopes.items()}
        | {CHOSEN: float(slopes[FOCI][chosen].norm()), OTHERS: float(slopes[FOCI][~chosen].norm())},
        "sample_norms": {
            name: float(regression.sample_slope(weights, sample).norm()) for name, weights in after.items()
        },
        "left": left,
        "slices": len(picked.numbers),
        "same_block": picked.numbers == other.numbers,
    }


def _shares_left(task: Task, after: dict[str, Tensor], sample: int) -> dict[str, float]:
    """Distances to the exactly retrained optimum, as shares of the distance before."""
    kept = all_but([sample], len(task.train_set))
    truth = _matrix(exact_fit(task, ids=kept, double=True, tolerance=1e-11).model)
    way = (after[BEFORE] - truth).norm()
    return {name: float((weights - truth).norm() / way) for name, weights in after.items() if name != BEFORE}


def _matrix(model: nn.Module) -> Tensor:
    """Weights and biases as classes × (inputs and bias)."""
    weight, bias = model.get_parameter("weight").detach(), model.get_parameter("bias").detach()
    return torch.cat([weight, bias[:, None]], dim=1).double()
