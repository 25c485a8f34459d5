"""What the person re-identification sets have in common: who was seen, by which camera, on which image.

Numbers of people and cameras are the official ones (cameras count from 1). A query must find images of the same
person, taken by another camera, in the gallery.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from excise.datasets.files import Size, Source, read_images
from excise.errors import InputError


@dataclass(frozen=True)
class Sighting:
    """One image of one person by one camera."""

    path: Path
    person: int
    camera: int


@dataclass(frozen=True)
class Reid:
    """A set for re-identification: images to train on, to ask for and to search in, unread until ``load_images``."""

    name: str
    train: tuple[Sighting, ...]
    query: tuple[Sighting, ...]
    gallery: tuple[Sighting, ...]

    def summary(self) -> str:
        """How many images and people there are: one sentence, to be compared with the official figures."""
        parts = [
            f"{len(sightings):,} {kind} images of {len({sighting.person for sighting in sightings}):,} people"
            for kind, sightings in (("training", self.train), ("query", self.query), ("gallery", self.gallery))
        ]
        return f"{self.name}: {', '.join(parts)}."


def load_images(sightings: Sequence[Sighting], *, size: Size = (256, 128)) -> Tensor:
    """The sightings' images, resized to (height, width), as one uint8 tensor of shape (n, 3, height, width)."""
    return read_images([sighting.path for sighting in sightings], size=size)


def sightings_by_name(folder: Path, ending: str, name: re.Pattern[str], source: Source) -> list[Sighting]:
    """The images of a folder, sorted by name; the pattern's groups ``person`` and ``camera`` say what a name means."""
    if not folder.is_dir():
        raise source.missing(folder)
    sightings = []
    for path in sorted(folder.glob(f"*{ending}")):
        match = name.fullmatch(path.name)
        if match is None:
            raise source.damaged(path, f"is not named as this set's images are ({name.pattern})")
        sightings.append(Sighting(path, int(match["person"]), int(match["camera"])))
    if not sightings:
        raise source.missing(folder, f"has no images *{ending}")
    return sightings


def random_half(people: Sequence[int], seed: int) -> set[int]:
    """Half of the people (rounded down), drawn by the seed alone."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a non-negative whole number, not {seed!r}.")
    order = np.random.default_rng(seed).permutation(sorted(people))
    return {int(person) for person in order[: len(order) // 2]}
