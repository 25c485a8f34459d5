"""The small networks of the experiments: the same seed gives the same weights, whatever was drawn before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights that are made inside depend on the seed alone; the global random state is as before afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def mlp(seed: int, sizes: Sequence[int] = (784, 128, 64, 10)) -> nn.Sequential:
    """Linear layers of these sizes, from inputs to classes, with ReLUs between them."""
    layers: list[nn.Module] = []
    with seeded(seed):
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def logistic(seed: int, inputs: int = 784, classes: int = 10) -> nn.Linear:
    """Logistic regression."""
    with seeded(seed):
        return nn.Linear(inputs, classes)


def cnn(seed: int) -> nn.Sequential:
    """Three convolutions and two linear layers for images of 3 × 32 × 32, without batch normalisation."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
