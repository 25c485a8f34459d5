"""Maps of what matters in an image, and what becomes of the prediction as their best pixels go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from excise.evidence.sensitivity import sensitivity
from excise.reproduce.framework.experiment import Measured
from excise.task.task import Task

LOSS = nn.CrossEntropyLoss(reduction="none")
XI, GRADIENT, RANDOM = "ξ", "gradient", "random"
Map = NDArray[np.float64]


@dataclass(frozen=True)
class Explained:
    """A trained network and the images it is asked about."""

    name: str
    task: Task
    """Its ``train_set`` is the images that are explained."""
    blank: Tensor
    """What a deleted pixel is replaced by: the mean image of the training set."""

    @property
    def images(self) -> Tensor:
        """(n, channels, height, width)."""
        images: Tensor = self.task.train_set.tensors[0]
        return images

    @property
    def labels(self) -> Tensor:
        """Their classes."""
        labels: Tensor = self.task.train_set.tensors[1]
        return labels


@dataclass(frozen=True)
class PatchNoise:
    """Add one N(0, scale²) to all values of a square of pixels, in all channels alike."""

    side: int = 1
    scale: float = 0.1

    def __call__(self, inputs: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """Perturbed copies of a batch of one."""
        height, width = inputs.shape[-2:]
        coarse = torch.randn(copies, 1, height // self.side, width // self.side, generator=generator)
        fine = coarse.repeat_interleave(self.side, 2).repeat_interleave(self.side, 3)
        return inputs + self.scale * fine.to(inputs)


# ---------------------------------------------------------------------------------------------------- maps


def xi_map(explained: Explained, image: int, *, side: int, copies: int, noise: float, seed: int) -> Map:
    """ξ of each pixel, or square of pixels, and the loss: (height, width)."""
    found = sensitivity(
        explained.task,
        explained.task.model,
        image,
        copies=copies,
        perturbation=PatchNoise(side, noise),
        seed=seed,
    )
    return pooled(found.mean(axis=0), side)


def gradient_map(explained: Explained, image: int, *, side: int) -> Map:
    """The loss's gradient with respect to each pixel, by its size, summed over channels and over squares of pixels."""
    inputs = explained.images[image : image + 1].clone().requires_grad_()
    loss = LOSS(explained.task.model(inputs), explained.labels[image : image + 1]).sum()
    (gradient,) = torch.autograd.grad(loss, inputs)
    return pooled(gradient[0].abs().sum(0).double().numpy(), side)


def pooled(values: Map, side: int) -> Map:
    """The mean of each square, at all of its pixels.

    >>> pooled(np.array([[1.0, 3.0], [5.0, 7.0]]), 2).tolist()
    [[4.0, 4.0], [4.0, 4.0]]
    """
    height, width = values.shape
    squares = values.reshape(height // side, side, width // side, side).mean(axis=(1, 3))
    spread: Map = np.kron(squares, np.ones((side, side)))
    return spread


def random_map(shape: tuple[int, int], *, side: int, seed: int) -> Map:
    """A map that says nothing: every square has a random value."""
    return pooled(np.random.default_rng(seed).random(shape), side)


# ---------------------------------------------------------------------------------------------------- curves


def curves(explained: Explained, image: int, values: Map, *, side: int, steps: int) -> tuple[list[float], list[float]]:
    """The true class's probability while pixels are deleted, and while they are inserted, the highest values first.

    Entry k is after the share k / steps of all squares.
    """
    original, blank = explained.images[image], explained.blank
    squares = values[::side, ::side]
    rank = np.empty(squares.size, dtype=np.int64)
    rank[np.argsort(-squares, axis=None, kind="stable")] = np.arange(squares.size)
    rank = np.kron(rank.reshape(squares.shape), np.ones((side, side), dtype=np.int64))
    gone = np.rint(np.linspace(0, squares.size, steps + 1)).astype(np.int64)
    first = torch.tensor(rank[None] < gone[:, None, None])[:, None]
    found = []
    for inputs in (torch.where(first, blank, original), torch.where(first, original, blank)):
        with torch.no_grad():
            probability = F.softmax(explained.task.model(inputs), dim=1)[:, explained.labels[image]]
        found.append([round(float(p), 4) for p in probability])
    return found[0], found[1]


def area(curve: Any) -> Any:
    """The mean height of curves (rows), by the trapezoidal rule."""
    curve = np.asarray(curve, dtype=float)
    return (curve[..., 1:] + curve[..., :-1]).mean(axis=-1) / 2


def packed(values: Map) -> dict[str, Any]:
    """A picture in few letters: its least value (0 for a map) to its greatest as a byte each, in hexadecimals."""
    low, high = float(values.min()) if values.ndim == 3 else 0.0, float(values.max())
    scaled = 255 * (np.maximum(values, low) - low) / max(high - low, 1e-12)
    return {"shape": list(values.shape), "hex": np.rint(scaled).astype(np.uint8).tobytes().hex()}


def unpacked(picture: Measured) -> NDArray[np.uint8]:
    """What ``packed`` was given, as bytes."""
    return np.frombuffer(bytes.fromhex(picture["hex"]), dtype=np.uint8).reshape(picture["shape"])
