"""A deletion request on a trained network, together with what exact retraining gives: made once, kept in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Task, fit
from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.mnist import load_mnist
from excise.networks import small as networks
from excise.task.hashing import hash_of_model
from excise.task.ids import all_but
from excise.training.model_cache import content_key, kept_model

SAMPLES, HELD_OUT, EPOCHS, DECAY, CLASSES = 4000, 10_000, 30, 1e-3, 10
REQUESTS = ("random", "class", "hardest", "mislabelled", "whole class")
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Network:
    """How to make one, and from which data."""

    make: Callable[[int], nn.Module]
    data: Callable[[Path], tuple[Tensor, Ints, Tensor, Ints]]
    """Images and labels for training, and for testing."""


@cache
def _mnist(folder: Path, name: str = "mnist") -> tuple[Tensor, Ints, Tensor, Ints]:
    (images, labels), (test_images, test_labels) = load_mnist(folder / name), load_mnist(folder / name, "t10k")
    return torch.tensor(images), labels, torch.tensor(test_images), test_labels


def _fashion(folder: Path) -> tuple[Tensor, Ints, Tensor, Ints]:
    """Files of the same names and format."""
    return _mnist(folder, "fashion-mnist")


@cache
def _cifar(folder: Path) -> tuple[Tensor, Ints, Tensor, Ints]:
    where = folder / "cifar-10-batches-bin"
    (images, labels), (test_images, test_labels) = load_cifar(where, "train"), load_cifar(where, "test")
    return normalised(images), labels, normalised(test_images), test_labels


NETWORKS = {
    "mlp": Network(networks.mlp, _mnist),
    "fashion": Network(networks.mlp, _fashion),
    "cnn": Network(networks.cnn, _cifar),
}


@dataclass(frozen=True)
class Case:
    """One request, its original model and its retrained ones."""

    task: Task
    ids: Ints
    labels: Ints
    """Of all training samples, as trained on."""
    retrained: tuple[nn.Module, ...]
    held_out: Tensor
    held_out_labels: Ints

    @property
    def kept(self) -> Ints:
        """Training samples that are not forgotten."""
        return np.asarray(all_but(self.ids, len(self.labels)))

    def seconds_of_retraining(self, epochs: int = 2) -> float:
        """What a retraining takes on this machine now, from a few of its epochs."""
        begin = time.perf_counter()
        fit(self.task, ids=self.kept, epochs=epochs)
        return (time.perf_counter() - begin) / epochs * EPOCHS


def make_case(network: str, request: str, seed: int, *, retrainings: int, data_dir: Path, kept_in: Path) -> Case:
    """Train the network, choose the samples to forget, and retrain without them."""
    recipe = NETWORKS[network]
    images, labels, test_images, test_labels = recipe.data(data_dir)
    rng = np.random.default_rng(seed)
    chosen, held_out = rng.permutation(len(images))[:SAMPLES], rng.permutation(len(test_images))[:HELD_OUT]
    labels = labels[chosen].copy()
    ids = np.sort(rng.permutation(SAMPLES)[: SAMPLES // 100])
    if request == "mislabelled":
        labels[ids] = (labels[ids] + rng.integers(1, CLASSES, len(ids))) % CLASSES
    train = TensorDataset(images[torch.tensor(chosen)], torch.tensor(labels))

    def trained(init: int, seed: int, without: Ints) -> nn.Module:
        start = Task(recipe.make(init), nn.CrossEntropyLoss(reduction="none"), train, weight_decay=DECAY)
        return _kept_fit(start, without, seed, kept_in / network)

    model = trained(seed, seed, np.array([], dtype=np.int64))
    task = Task(model, nn.CrossEntropyLoss(reduction="none"), train, weight_decay=DECAY)
    if request in ("class", "whole class"):
        ids = np.flatnonzero(labels == seed % CLASSES)[: 100 if request == "class" else None]
    elif request == "hardest":
        with torch.no_grad():
            losses = task.losses(model, task.batch(range(SAMPLES))).numpy()
        ids = np.sort(np.argsort(-losses, kind="stable")[: SAMPLES // 100])
    again = tuple(trained(100 * (seed + 1) + k, k, ids) for k in range(retrainings))
    where = torch.tensor(held_out)
    return Case(task, ids, labels, again, test_images[where], test_labels[held_out])


def _kept_fit(task: Task, without: Ints, seed: int, name: Path) -> nn.Module:
    """``fit`` on all other samples, or its outcome from the folder where it was done before."""
    kept = all_but(without, len(task.train_set))
    key = content_key(task, without.tolist(), EPOCHS, seed, hash_of_model(task.model))
    file = name.with_name(f"{name.name}-{key}.safetensors")
    return kept_model(file, task.model, lambda: fit(task, ids=kept, epochs=EPOCHS, seed=seed)).fitted.model


def logits(model: nn.Module, images: Tensor) -> Any:
    """What a model says about images, in double precision."""
    with torch.no_grad():
        return torch.cat([model(some) for some in images.split(500)]).double().numpy()
