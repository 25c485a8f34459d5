"""Tasks on real data for the command line, such as ``excise compare --task experiments.tasks:mnist_mlp``.

``mnist_mlp``, ``mnist_mlp_mislabelled`` and ``cifar_cnn`` are those of ``experiments.quality`` for seed 0: 4,000
images, a network trained for 30 epochs, and a recipe by which to retrain it. The others are for ``excise population``,
which trains many models by that recipe: which samples there are never depends on a model's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import Task, TokenReplacement, fit
from excise._support.files import write_whole
from excise.datasets.files import default_folder
from excise.datasets.ledgar import PROTOTYPES
from excise.datasets.orl import load_orl
from excise.networks import small
from excise.training.retraining import train_anew
from experiments import networks
from experiments.augmented import fit_augmented
from experiments.cases import DECAY, EPOCHS, NETWORKS, SAMPLES, Case, make_case
from experiments.clauses import LENGTH, PADDING, UNKNOWN, WORDS, load_clauses
from experiments.mixed_precision import fit_augmented_in_half

DATA = default_folder()
KEPT = Path(".cache") / "quality"
Sets = tuple[TensorDataset, TensorDataset]
Train = Callable[..., nn.Module]
"""``train(task, ids, epochs=, lr=, seed=)`` trains the task's model on some of its samples."""


def mnist_mlp() -> Task:
    """An MLP on 4,000 MNIST digits."""
    return _task("mlp", "random")


def mnist_mlp_mislabelled() -> Task:
    """The same with 1 % of the labels wrong; ``mislabelled.txt``, which this writes, lists them."""
    return _task("mlp", "mislabelled")


def cifar_cnn() -> Task:
    """A CNN that knows 4,000 CIFAR-10 images by heart."""
    return _task("cnn", "random")


def mnist_logistic(epochs: int = EPOCHS) -> Task:
    """Logistic regression on 4,000 MNIST digits."""
    return _made(small.logistic, _images("mlp", SAMPLES), _plainly, epochs=epochs, lr=0.05)


def fashion_mlp(epochs: int = EPOCHS) -> Task:
    """The MLP on 4,000 images of Fashion-MNIST, whose official files are in the folder ``fashion-mnist``."""
    return _made(small.mlp, _images("fashion", SAMPLES), _plainly, epochs=epochs, lr=0.05)


def cifar_bn_cnn(epochs: int = EPOCHS) -> Task:
    """A CNN with batch normalisation on 4,000 CIFAR-10 images, trained with random crops and flips."""
    return _made(networks.bn_cnn, _images("cnn", SAMPLES), fit_augmented, epochs=epochs, lr=0.1)


def resnet9_quarter(epochs: int = 10) -> Task:
    """ResNet-9 of a quarter of its width on 10,000 CIFAR-10 images, trained with random crops and flips."""
    return _made(_quarter, _images("cnn", 10_000), fit_augmented_in_half, epochs=epochs, lr=0.01)


def clauses_transformer(epochs: int = EPOCHS) -> Task:
    """A small transformer that tells 13 kinds of contract clauses, trained on 4,000 of them."""
    made = _made(_for_clauses, load_clauses(DATA / "ledgar", train=SAMPLES, seed=0), _plainly, epochs=epochs, lr=0.05)
    return replace(made, perturbation=TokenReplacement((0, WORDS), keep=(PADDING, UNKNOWN)))


def orl_faces(epochs: int = 60) -> Task:
    """A CNN that tells 40 people, trained on seven pictures of each, whose keys are ``s1`` to ``s40``."""
    faces = load_orl(DATA / "orl_faces")
    images = functional.avg_pool2d(torch.tensor(faces.images)[:, None].float() / 255 - 0.5, 2)
    labels, seen = torch.tensor(faces.labels), torch.tensor(faces.index <= 7)
    sets = TensorDataset(images[seen], labels[seen]), TensorDataset(images[~seen], labels[~seen])
    made = _made(networks.face_cnn, sets, _plainly, epochs=epochs, lr=0.05)
    return replace(made, keys=[f"s{label + 1}" for label in labels[seen].tolist()])


def _images(data: str, count: int) -> Sets:
    """So many images to train on, drawn once for all, and all those for testing."""
    images, labels, test_images, test_labels = NETWORKS[data].data(DATA)
    chosen = torch.tensor(np.random.default_rng(0).permutation(len(images))[:count])
    train = TensorDataset(images[chosen], torch.tensor(labels)[chosen])
    return train, TensorDataset(test_images, torch.tensor(test_labels))


def _quarter(seed: int) -> nn.Module:
    return networks.resnet9(seed, width=16)


def _for_clauses(seed: int) -> nn.Module:
    return networks.text_transformer(seed, WORDS, LENGTH, len(PROTOTYPES))


def _plainly(task: Task, ids: Tensor, *, epochs: int, lr: float, seed: int) -> nn.Module:
    return fit(task, ids=ids, epochs=epochs, lr=lr, seed=seed).model


def _made(network: Callable[[int], nn.Module], sets: Sets, train: Train, *, epochs: int, lr: float) -> Task:
    """The task with a model trained by its own recipe, or read where that was done before."""
    start = Task(network(0), nn.CrossEntropyLoss(reduction="none"), *sets, weight_decay=DECAY)

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        return train(replace(start, model=network(seed)), ids, epochs=epochs, lr=lr, seed=seed)

    task = replace(start, retrain=retrain)
    return task.with_model(train_anew(task, seed=0, cache=KEPT).model)


def _task(network: str, request: str) -> Task:
    case = make_case(network, request, 0, retrainings=0, data_dir=DATA, kept_in=KEPT)
    if request == "mislabelled":
        KEPT.mkdir(parents=True, exist_ok=True)
        write_whole(KEPT / "mislabelled.txt", "\n".join(map(str, case.ids)) + "\n")
    return _with_recipe(case, network)


def _with_recipe(case: Case, network: str) -> Task:
    test = TensorDataset(case.held_out, torch.tensor(case.held_out_labels))

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        start = replace(case.task, model=NETWORKS[network].make(seed))
        return fit(start, ids=ids, epochs=EPOCHS, seed=seed).model

    return replace(case.task, test_set=test, retrain=retrain)
