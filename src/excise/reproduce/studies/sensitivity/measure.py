"""Remark 2: does ξ of every pixel and the output explain what a network looks at, and better than its gradient?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.mnist import load_mnist
from excise.networks.resnet import resnet20
from excise.networks.small import mlp
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit
from excise.reproduce.framework.run import Run
from excise.reproduce.studies.sensitivity.maps import (
    GRADIENT,
    LOSS,
    RANDOM,
    XI,
    Explained,
    Map,
    area,
    curves,
    gradient_map,
    packed,
    random_map,
    xi_map,
)
from excise.task.task import Task

MNIST, CIFAR = "MNIST", "CIFAR-10"
WEIGHTS = "resnet20-12fca82f_state_dict.pt"


@dataclass(frozen=True)
class Settings:
    """Of this experiment; the remark names none, so the perturbations are those of appendix B."""

    mnist_images: int = 50
    """That are explained: from the test set, and classified rightly."""
    cifar_images: int = 24
    copies: int = 1000
    noise: float = 0.1
    patch: int = 4
    """The side of the squares that are perturbed as one, beside single pixels."""
    steps: int = 32
    """Of a deletion curve."""
    studied: int = 6
    """Images of MNIST for which copies and noise are varied."""
    copies_tried: tuple[int, ...] = (250, 1000, 4000, 16000)
    noises_tried: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    samples: int = 10000
    epochs: int = 10
    shown: int = 3
    """Images of each set that the figure shows."""


def measure(run: Run[Settings]) -> Measured:
    """Deletion and insertion by each map, on MNIST and on CIFAR-10, and what the maps depend on."""
    settings = run.settings
    digits, objects = _mnist(run), _cifar(run)
    return {
        "copies": settings.copies,
        "patch": settings.patch,
        "sets": {explained.name: _all_images(run, explained) for explained in (digits, objects)},
        "copies tried": {
            "at": list(settings.copies_tried),
            "found": [
                run.step(
                    f"{MNIST}, {copies} copies", partial(_study, digits, settings, run.seed, copies, settings.noise)
                )
                for copies in settings.copies_tried
            ],
        },
        "noises tried": {
            "at": list(settings.noises_tried),
            "found": [
                run.step(
                    f"{MNIST}, noise {noise:g}", partial(_study, digits, settings, run.seed, settings.copies, noise)
                )
                for noise in settings.noises_tried
            ],
        },
    }


def _all_images(run: Run[Settings], explained: Explained) -> dict[str, Any]:
    outcomes = [
        run.step(f"{explained.name}, image {image}", partial(_one_image, explained, image, run.settings, run.seed))
        for image in range(len(explained.images))
    ]
    return {
        **_summary(outcomes, run.settings.patch),
        "shown": [outcome["picture"] for outcome in outcomes[: run.settings.shown]],
    }


def _mnist(run: Run[Settings]) -> Explained:
    settings = run.settings
    images, labels = (torch.tensor(array) for array in load_mnist(run.data_dir / "mnist"))
    rng = np.random.default_rng([run.seed, 0])
    chosen = torch.tensor(rng.permutation(len(images))[: settings.samples])
    network = nn.Sequential(nn.Flatten(), mlp(run.seed))
    images = images.view(-1, 1, 28, 28)
    start = Task(network, LOSS, TensorDataset(images[chosen], labels[chosen]), weight_decay=0.0005)
    model = kept_fit(run, f"{MNIST}, training", start, epochs=settings.epochs, seed=run.seed).model
    tests, truth = (torch.tensor(array) for array in load_mnist(run.data_dir / "mnist", "test"))
    return _explained(MNIST, model, tests.view(-1, 1, 28, 28), truth, images.mean(0), settings.mnist_images, rng)


def _cifar(run: Run[Settings]) -> Explained:
    model = resnet20(run.data_dir / "weights" / WEIGHTS)
    folder = run.data_dir / "cifar-10-batches-bin"
    tests, truth = load_cifar(folder, "test")
    blank = normalised(load_cifar(folder)[0]).mean(0)
    rng = np.random.default_rng([run.seed, 1])
    return _explained(CIFAR, model, normalised(tests), torch.tensor(truth), blank, run.settings.cifar_images, rng)


def _explained(
    name: str, model: nn.Module, images: Tensor, labels: Tensor, blank: Tensor, count: int, rng: np.random.Generator
) -> Explained:
    """The first images, in random order, that the network classifies rightly."""
    chosen: list[int] = []
    for index in rng.permutation(len(images)).tolist():
        with torch.no_grad():
            right = model(images[index : index + 1]).argmax() == labels[index]
        if right:
            chosen.append(index)
        if len(chosen) == count:
            break
    return Explained(name, Task(model, LOSS, TensorDataset(images[chosen], labels[chosen])), blank)


def _one_image(explained: Explained, image: int, settings: Settings, seed: int) -> dict[str, Any]:
    """Curves by each map, single pixels and squares, and how alike the maps are."""
    pixels = explained.images[image].permute(1, 2, 0).double().numpy()
    picture = {"image": packed(pixels)}
    found: dict[str, Any] = {"picture": picture}
    for side in (1, settings.patch):
        maps = _maps(explained, image, side, settings, seed)
        again = _xi(explained, image, side, settings, seed + 1)
        deleted, inserted = {}, {}
        for name, values in maps.items():
            deleted[name], inserted[name] = curves(explained, image, values, side=side, steps=settings.steps)
        found[str(side)] = {
            "deleted": deleted,
            "inserted": inserted,
            "with gradient": rank_correlation(maps[XI], maps[GRADIENT], side),
            "with itself": rank_correlation(maps[XI], again, side),
        }
        picture |= {f"{name} {side}": packed(maps[name][::side, ::side]) for name in (XI, GRADIENT)}
    return found


def _xi(explained: Explained, image: int, side: int, settings: Settings, seed: int) -> Map:
    return xi_map(explained, image, side=side, copies=settings.copies, noise=settings.noise, seed=1000 * seed + image)


def _maps(explained: Explained, image: int, side: int, settings: Settings, seed: int) -> dict[str, Map]:
    shape = tuple(explained.images.shape[-2:])
    return {
        XI: _xi(explained, image, side, settings, seed),
        GRADIENT: gradient_map(explained, image, side=side),
        RANDOM: random_map((shape[0], shape[1]), side=side, seed=1000 * seed + image),
    }


def rank_correlation(one: Map, other: Map, side: int) -> float:
    """Spearman's, over the squares; 0 where a map is constant."""
    a, b = one[::side, ::side].ravel(), other[::side, ::side].ravel()
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return round(float(spearmanr(a, b).statistic), 4)


def _study(explained: Explained, settings: Settings, seed: int, copies: int, noise: float) -> dict[str, Any]:
    """Deletion area and likeness to a second map of other noise, for single pixels and squares."""
    found: dict[str, Any] = {}
    for side in (1, settings.patch):
        areas, alike = [], []
        for image in range(min(settings.studied, len(explained.images))):
            of_noise: Callable[[int], Map] = partial(_other_xi, explained, image, side, copies, noise)
            one, two = of_noise(1000 * seed + image), of_noise(1000 * (seed + 1) + image)
            areas.append(float(area(curves(explained, image, one, side=side, steps=settings.steps)[0])))
            alike.append(rank_correlation(one, two, side))
        found[str(side)] = {"deleted": round(float(np.mean(areas)), 4), "with itself": round(float(np.mean(alike)), 4)}
    return found


def _other_xi(explained: Explained, image: int, side: int, copies: int, noise: float, seed: int) -> Map:
    return xi_map(explained, image, side=side, copies=copies, noise=noise, seed=seed)


def _summary(outcomes: Sequence[dict[str, Any]], patch: int) -> dict[str, Any]:
    """Mean curves, and the areas of every image."""
    summary: dict[str, Any] = {}
    for side in ("1", str(patch)):
        ones = [outcome[side] for outcome in outcomes]
        summary[side] = {
            "with gradient": round(float(np.mean([one["with gradient"] for one in ones])), 4),
            "with itself": round(float(np.mean([one["with itself"] for one in ones])), 4),
        }
        for way in ("deleted", "inserted"):
            every = {name: np.asarray([one[way][name] for one in ones]) for name in (XI, GRADIENT, RANDOM)}
            summary[side][way] = {
                name: {
                    "mean": [round(float(p), 4) for p in values.mean(0)],
                    "error": [round(float(e), 4) for e in values.std(0) / np.sqrt(len(values))],
                    "areas": [round(float(a), 4) for a in area(values)],
                }
                for name, values in every.items()
            }
    return summary
