"""Figure 5, right: removals from networks of many architectures on CIFAR-10."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.curvature.strategies import Cached
from excise.datasets.cifar import load_cifar, normalised
from excise.errors import InputError
from excise.networks.densenet import densenet
from excise.networks.mobilenet import mobilenet_v2
from excise.networks.resnet import resnet18, resnet20, resnet56
from excise.networks.small import cnn
from excise.networks.vgg import vgg11
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.published_removals import published_removals, published_sigma
from excise.reproduce.parts.removals import one_at_a_time, remove_one_by_one
from excise.reproduce.parts.scores import gradient_norm, is_right
from excise.task.task import Task
from excise.training.loop import Fitted
from excise.unlearning.selection import PerLayer
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
LITERAL, OURS = "paper", "ours"
SERIES = (LITERAL, OURS)
ACCURACY, NORM = "residual accuracy", "sample gradient norm"
PAPER_SAMPLES, PAPER_REMOVALS = 50_000, 1000
WEIGHTS = {"ResNet-20": "resnet20-12fca82f_state_dict.pt", "ResNet-56": "resnet56-4bfd9763_state_dict.pt"}
PRETRAINED_EPOCHS, PRETRAINED_RATE = 2, 0.001  # two, as the published curvature asks for; hardly moving


@dataclass(frozen=True)
class Settings:
    """Those of appendix B; epochs are those of the published scripts."""

    networks: tuple[str, ...] = (
        "CNN",
        "VGG-11",
        "VGG-11-BN",
        "ResNet-18",
        "ResNet-20",
        "ResNet-56",
        "DenseNet",
        "MobileNet",
    )
    width: float = 1.0
    """Of VGG-11, ResNet-18 and MobileNet, as a share of the original."""
    densenet: tuple[int, int] = (40, 12)
    """Depth and growth, which the paper leaves open."""
    samples: int = PAPER_SAMPLES
    removals: int = PAPER_REMOVALS
    runs: int = 2
    """Each removes other samples from the same trained networks."""
    epochs: int = 200
    batch_size: int = 64
    learning_rate: float = 0.1
    careful_rate: float = 0.01
    """For VGG-11, with batch normalisation and without."""
    weight_decay: float = 0.01
    copies: int = 1000
    epsilon: float = 0.1
    delta: float = 0.01
    curvature_samples: int = 1000
    """That our curvature is taken from."""
    tuned: int = PAPER_SAMPLES
    """How many samples the pretrained networks are trained on once more."""
    scored: int = PAPER_SAMPLES
    """How many of the samples that are never removed tell the accuracy."""
    every: int = 50
    """Removals from one measurement to the next."""


def network(name: str, settings: Settings, *, seed: int, data_dir: Path) -> nn.Module:
    """An architecture by its name in the figure; the ResNets of 20 and 56 layers with their weights."""
    depth, growth = settings.densenet
    filters = max(4, round(64 * settings.width))
    makers: dict[str, Callable[[], nn.Module]] = {
        "CNN": lambda: cnn(seed),
        "VGG-11": lambda: vgg11(seed, width=filters),
        "VGG-11-BN": lambda: vgg11(seed, width=filters, batch_norm=True),
        "ResNet-18": lambda: resnet18(seed, width=filters),
        "ResNet-20": lambda: resnet20(_weights(name, data_dir)),
        "ResNet-56": lambda: resnet56(_weights(name, data_dir)),
        "DenseNet": lambda: densenet(seed, depth=depth, growth=growth),
        "MobileNet": lambda: mobilenet_v2(seed, width=settings.width),
    }
    return makers[name]()


def _weights(name: str, data_dir: Path) -> Path:
    file = data_dir / "weights" / WEIGHTS[name]
    if not file.exists():
        raise InputError(
            f"{file} is not there: the weights of {name} by akamaster/pytorch_resnet_cifar10, as a plain state dict."
        )
    return file


def measure(run: Run[Settings]) -> Measured:
    """Accuracy and the removed sample's gradient norm over the removals, for each network and both methods."""
    settings = run.settings
    images, labels = load_cifar(run.data_dir / "cifar-10-batches-bin")
    chosen = np.random.default_rng(run.seed).permutation(len(images))[: settings.samples]
    train = TensorDataset(normalised(images[chosen]), torch.tensor(labels[chosen]))
    found = {name: _one_network(run, name, train) for name in settings.networks}
    first = next(iter(found.values()))
    return {
        "removed": first[LITERAL][0]["removed"],
        "samples": len(train),
        "sigma": scaled_sigma(settings),
        "sigma unscaled": published_sigma(settings, len(train)),
        "parameters": {name: one["parameters"] for name, one in found.items()},
        **{
            score: {name: {series: [r[score] for r in one[series]] for series in SERIES} for name, one in found.items()}
            for score in (ACCURACY, NORM)
        },
    }


def _one_network(run: Run[Settings], name: str, train: TensorDataset) -> dict[str, Any]:
    settings = run.settings
    start = Task(
        network(name, settings, seed=run.seed, data_dir=run.data_dir), LOSS, train, weight_decay=settings.weight_decay
    )
    fitted = kept_fit(
        run,
        f"{name}, training",
        start,
        batch_size=settings.batch_size,
        seed=run.seed,
        recorder=True,
        **training_of(name, settings),
    )
    task = replace(start, model=fitted.model)
    outcome: dict[str, Any] = {"parameters": sum(weight.numel() for weight in task.model.parameters())}
    for series in SERIES:
        outcome[series] = []
        for number in range(settings.runs):
            make = partial(_removals, run, name, series, task, fitted, number)
            outcome[series].append(run.step(f"{name}, {series}, run {number}", make))
    return outcome


def training_of(name: str, settings: Settings) -> dict[str, Any]:
    """Epochs, learning rate and samples: the pretrained networks only need the gradients of two epochs."""
    if name in WEIGHTS:
        count = min(settings.tuned, settings.samples)
        return {"epochs": PRETRAINED_EPOCHS, "lr": PRETRAINED_RATE, "ids": range(count)}
    careful = name.startswith("VGG")
    return {"epochs": settings.epochs, "lr": settings.careful_rate if careful else settings.learning_rate}


def _removals(run: Run[Settings], name: str, series: str, task: Task, fitted: Fitted, number: int) -> dict[str, Any]:
    """One curve."""
    settings, seed = run.settings, run.seed + 1000 * number
    order = np.random.default_rng([run.seed, number]).permutation(len(task.train_set))
    ids, others = order[: settings.removals].tolist(), order[settings.removals :][: settings.scored].tolist()
    if series == OURS:
        step = Step(PerLayer(copies=settings.copies), Cached(samples=settings.curvature_samples))
        forget = one_at_a_time(Unlearner(task, step, seed=seed, n_jobs=1))
    else:
        assert fitted.trace is not None
        sigma = scaled_sigma(settings)
        forget = published_removals(task, fitted.trace, copies=settings.copies, sigma=sigma, seed=seed).forget
    with run.progress(f"{name}, {series}", len(ids)) as bar:
        return remove_one_by_one(
            task.model,
            forget,
            ids,
            every=settings.every,
            measure=lambda model, _: {ACCURACY: accuracy(task, model, others)},
            of_sample=lambda model, sample: {NORM: gradient_norm(task, model, sample)},
            bar=bar,
        )


def accuracy(task: Task, model: nn.Module, ids: Sequence[int]) -> float:
    """On these samples of the training set."""
    return float(is_right(model, task.train_set, ids, batch_size=250).double().mean())


def scaled_sigma(settings: Settings) -> float:
    """Noise of one removal that adds up, over all removals, to what it does over the paper's 1,000 of 50,000.

    Independent noise adds up as the root of its number.
    """
    return published_sigma(settings, PAPER_SAMPLES) * math.sqrt(PAPER_REMOVALS / settings.removals)
