"""Images with many known factors that hang together as CelebA's attributes do: faces, or digits that stand in for them.

CelebA's table says of every face which of 40 attributes it has. One of them is the label; the other 39 are outside
factors. Where the faces' images are not at hand, a digit is drawn instead of each: the label decides whether it is a
nine or a four, and every factor switches one change of the picture on or off, so that labels and factors are
correlated exactly as in the table.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from excise.datasets.celeba import load_attributes, load_images
from excise.datasets.mnist import load_mnist
from excise.errors import InputError

PARTS = ("train", "test")
SIDE, MARK = 32, 4  # a picture's side, and a mark's
CHANGES = {
    "Male": "thicker strokes",
    "Young": "brighter ink",
    "Smiling": "leaning to the right instead of the left",
    "Attractive": "a blue background",
    "Heavy_Makeup": "red ink",
    "Pale_Skin": "a lighter background",
    "Wavy_Hair": "stripes",
    "Wearing_Hat": "a bar over the digit's head",
    "Rosy_Cheeks": "a red cast",
    "Gray_Hair": "grain",
    "Blurry": "blur",
}
"""The factors that change the whole picture; each of the others is a coloured mark at its own place on the rim."""


@dataclass(frozen=True)
class Attributes:
    """CelebA's table, one of its columns taken as the label."""

    labels: NDArray[np.bool_]
    factors: NDArray[np.bool_]
    """One column per outside factor."""
    names: tuple[str, ...]
    """Of the factors."""

    def __getitem__(self, rows: NDArray[np.int64]) -> Attributes:
        return Attributes(self.labels[rows], self.factors[rows], self.names)


@dataclass(frozen=True)
class Attributed:
    """Images with their labels and factors."""

    images: Tensor
    """uint8, (n, 3, height, width)."""
    labels: Tensor
    """float, 0 or 1, (n,)."""
    factors: Tensor
    """float, 0 or 1, (n, factors)."""


def attributes_of(folder: Path, label: str) -> Attributes:
    """CelebA's attributes of all images, from its official table."""
    values, names = load_attributes(folder)
    if label not in names:
        raise InputError(f"label must be one of CelebA's attributes ({', '.join(names)}), not {label!r}.")
    column = names.index(label)
    factors = np.delete(values, column, axis=1) > 0
    return Attributes(values[:, column] > 0, factors, tuple(np.delete(names, column).tolist()))


def faces(folder: Path, table: Attributes, rows: NDArray[np.int64], *, side: int) -> Attributed:
    """The photographs of these rows of the table, resized to a square."""
    chosen = table[rows]
    return _attributed(load_images(folder, rows.tolist(), size=(side, side)), chosen)


@dataclass(frozen=True)
class Digits:
    """All of MNIST's images of two digits."""

    strokes: tuple[Tensor, Tensor]
    """For each of the two: (n, 28, 28), from 0 to 1."""

    @classmethod
    def load(cls, folder: Path, classes: tuple[int, int] = (4, 9)) -> Digits:
        """From both parts of MNIST."""
        images, labels = (np.concatenate(both) for both in zip(*map(partial(load_mnist, folder), PARTS), strict=True))
        first, second = (torch.tensor(images[labels == digit]).view(-1, 28, 28) for digit in classes)
        return cls((first, second))

    def drawn(self, tables: Sequence[Attributes], rng: np.random.Generator) -> list[Attributed]:
        """A digit for every row of the tables: the second where it has the label, the first where not.

        The row's factors are drawn onto it. No image of a digit is used twice.
        """
        waiting = [images[torch.tensor(rng.permutation(len(images)))] for images in self.strokes]
        drawn = []
        for table in tables:
            strokes = torch.empty(len(table.labels), 28, 28)
            for label, images in enumerate(waiting):
                wanted = torch.tensor(table.labels == label)
                count = int(wanted.sum())
                if count > len(images):
                    raise InputError(f"{count} more digits are needed, but {len(images)} are left: take fewer samples.")
                strokes[wanted], waiting[label] = images[:count], images[count:]
            drawn.append(_attributed(draw_factors(strokes, table, seed=int(rng.integers(2**31))), table))
        return drawn


def _attributed(images: Tensor, table: Attributes) -> Attributed:
    return Attributed(images, torch.tensor(table.labels).float(), torch.tensor(table.factors).float())


def draw_factors(strokes: Tensor, table: Attributes, *, seed: int) -> Tensor:
    """Digits (n, 28, 28), from 0 to 1, as coloured pictures of 32 × 32 pixels with the factors of their rows."""
    has = {name: torch.tensor(table.factors[:, column]) for column, name in enumerate(table.names)}
    generator = torch.Generator().manual_seed(seed)
    ink = _strokes(F.pad(strokes, (2, 2, 2, 2))[:, None], has)
    shape = (len(ink), 1, 1, 1)

    def either(name: str, one: list[float], other: list[float]) -> Tensor:
        """A colour for each picture: ``one`` where it has the factor, ``other`` where not."""
        return torch.where(
            has[name].view(shape), torch.tensor(one).view(1, 3, 1, 1), torch.tensor(other).view(1, 3, 1, 1)
        )

    paint = either("Heavy_Makeup", [1.0, 0.6, 0.6], [1.0, 1.0, 1.0])
    paint = paint * either("Young", [1.0] * 3, [0.7] * 3)
    ground = either("Attractive", [0.0, 0.0, 0.25], [0.0] * 3) + either("Pale_Skin", [0.2] * 3, [0.0] * 3)
    pictures = ground * (1 - ink) + paint * ink
    stripes = 0.2 * (torch.arange(SIDE) % 4 < 2).float().view(1, 1, 1, SIDE)
    pictures = pictures + stripes * has["Wavy_Hair"].view(shape)
    _set(pictures[:, :, 5:7, 8:24], has["Wearing_Hat"], (0.6, 0.6, 0.2))
    for place, name in enumerate(name for name in table.names if name not in CHANGES):
        top, left = rim(place)
        colour = colorsys.hsv_to_rgb(place * 0.618 % 1, 0.8, 0.8)  # neighbours differ by the golden section
        _set(pictures[:, :, top : top + MARK, left : left + MARK], has[name], colour)
    pictures = pictures * either("Rosy_Cheeks", [1.0, 0.75, 0.75], [1.0] * 3)
    grain = torch.randn(pictures.shape, generator=generator)
    pictures = pictures + (0.05 + 0.15 * has["Gray_Hair"].view(shape)) * grain  # a little of it everywhere
    pictures = torch.where(has["Blurry"].view(shape), F.avg_pool2d(pictures, 3, 1, 1), pictures)
    return (pictures.clamp(0, 1) * 255).round().to(torch.uint8)


def _strokes(ink: Tensor, has: dict[str, Tensor]) -> Tensor:
    """The digits, some thicker, all leaning one way or the other."""
    ink = torch.where(has["Male"].view(-1, 1, 1, 1), F.max_pool2d(ink, 3, 1, 1), ink)
    lean = torch.where(has["Smiling"], 0.25, -0.25)
    turn = torch.eye(2, 3).repeat(len(ink), 1, 1)
    turn[:, 0, 1] = lean
    return F.grid_sample(ink, F.affine_grid(turn, list(ink.shape), align_corners=False), align_corners=False)


def _set(region: Tensor, where: Tensor, colour: tuple[float, float, float]) -> None:
    region[where] = torch.tensor(colour).view(1, 3, 1, 1)


def rim(place: int) -> tuple[int, int]:
    """Top and left of the marks on the rim, clockwise from the upper left corner.

    >>> rim(0), rim(7), rim(14), rim(27)
    ((0, 0), (0, 28), (28, 28), (4, 0))
    """
    last = SIDE // MARK - 1
    edge, along = divmod(place, last)
    row, column = ((0, along), (along, last), (last, last - along), (last - along, 0))[edge]
    return row * MARK, column * MARK
