"""People to be found again: images to train on, to ask for and to search in, each with a person and a camera."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from excise.datasets import grid, market1501, msmt17, prid
from excise.datasets.orl import load_orl
from excise.datasets.reid import Reid, Sighting, load_images
from excise.errors import InputError

Ints = NDArray[np.int64]
Loader = Callable[[Path], Reid]
OFFICIAL: dict[str, tuple[str, Loader]] = {
    "market1501": (market1501.SOURCE.folder, market1501.load_market1501),
    "msmt17": (msmt17.SOURCE.folder, msmt17.load_msmt17),
    "prid": (prid.SOURCE.folder, prid.load_prid),
    "grid": (grid.SOURCE.folder, grid.load_grid),
}
"""The sets of the paper: the folder that each lies in, and its loader."""
ORL_HELD_OUT = 4  # of a person's ten shots, in which people are asked for and searched


@dataclass(frozen=True)
class Album:
    """Images, bytes of (n, 3, height, width), and for each the person and the camera; as a data set, one by one."""

    images: Tensor
    people: Ints
    cameras: Ints

    def __len__(self) -> int:
        return len(self.people)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.pixels([row])[0], int(self.people[row])

    def pixels(self, rows: list[int] | Ints) -> Tensor:
        """Some of the images as networks read them, from -1 to 1."""
        return self.images[torch.as_tensor(rows)].float() / 127.5 - 1

    def of(self, person: int) -> list[int]:
        """The rows of a person."""
        return [int(row) for row in np.flatnonzero(self.people == person)]

    def take(self, rows: list[int] | Ints) -> Album:
        """Only these rows."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Album(self.images[torch.as_tensor(chosen)], self.people[chosen], self.cameras[chosen])

    def thinned(self, most: int) -> Album:
        """Only the first so many images of each person."""
        rows = [row for person in np.unique(self.people) for row in self.of(int(person))[:most]]
        return self.take(sorted(rows))


@dataclass(frozen=True)
class People:
    """A set for retrieval; people from 0 to ``trained`` - 1 are those of the training images."""

    train: Album
    query: Album
    gallery: Album
    trained: int
    removable: tuple[int, ...]
    """People of the training images who can be sought too, in random order."""


def load_people(
    dataset: str, data_dir: Path, *, size: tuple[int, int], trained: int, shots: int, watched: int, seed: int
) -> People:
    """ORL faces, or one of the official sets for re-identification.

    Args:
        dataset: ``"orl"``, ``"market1501"``, ``"msmt17"``, ``"prid"`` or ``"grid"``.
        data_dir: The folder that the sets lie in.
        size: Height and width that images are brought to.
        trained: For ORL: how many of the 40 people to train on. The others are only sought, never trained on.
        shots: For ORL: how many of a person's shots to train on; four others are held out.
        watched: For the official sets, whose queries are all of people never trained on: how many of the training
            people to seek too, by their training images.
        seed: Which people and shots.
    """
    rng = np.random.default_rng(seed)
    if dataset == "orl":
        return _orl(data_dir / "orl_faces", size, trained, shots, rng)
    if dataset not in OFFICIAL:
        raise InputError(f"dataset must be 'orl' or one of {', '.join(map(repr, OFFICIAL))}, not {dataset!r}.")
    folder, load = OFFICIAL[dataset]
    return _official(load(data_dir / folder), size, watched, rng)


def _orl(folder: Path, size: tuple[int, int], trained: int, shots: int, rng: np.random.Generator) -> People:
    """The shot's number stands for the camera: a query never finds itself."""
    faces = load_orl(folder)
    number = np.argsort(rng.permutation(40))  # of each person, in random order
    grey = torch.tensor(faces.images)[:, None].float()
    grey = F.interpolate(grey, size, mode="bilinear", antialias=True).round().clamp(0, 255).byte()
    album = Album(grey.expand(-1, 3, -1, -1), number[faces.labels].astype(np.int64), faces.index)
    seen: list[int] = []
    held_out: list[int] = []
    for person in range(40):
        rows = rng.permutation(album.of(person)).tolist()
        held_out += rows[-ORL_HELD_OUT:]
        seen += rows[: min(shots, len(rows) - ORL_HELD_OUT)] if person < trained else []
    test = album.take(held_out)
    return People(album.take(seen), test, test, trained, tuple(rng.permutation(trained).tolist()))


def _official(reid: Reid, size: tuple[int, int], watched: int, rng: np.random.Generator) -> People:
    """Training people are numbered from 0 on, and all others after them, as some sets use a number twice."""
    names = sorted({seen.person for seen in reid.train})
    trained = {name: number for number, name in enumerate(names)}
    others = sorted({seen.person for seen in (*reid.query, *reid.gallery)})
    sought = {name: len(names) + number for number, name in enumerate(others)}
    read = partial(_album, size=size)
    train, query, gallery = read(reid.train, trained), read(reid.query, sought), read(reid.gallery, sought)
    removable = [
        person for person in rng.permutation(len(names)).tolist() if len(set(train.cameras[train.of(person)])) > 1
    ]
    if not removable:
        raise InputError(f"{reid.name} has no one in its training images whom two cameras saw; is it complete?")
    removable = removable[:watched]
    known = train.take(np.flatnonzero(np.isin(train.people, removable)))
    return People(train, _joined(query, known), _joined(gallery, known), len(names), tuple(removable))


def _album(sightings: tuple[Sighting, ...], numbers: dict[int, int], *, size: tuple[int, int]) -> Album:
    people = np.array([numbers[seen.person] for seen in sightings], dtype=np.int64)
    cameras = np.array([seen.camera for seen in sightings], dtype=np.int64)
    return Album(load_images(sightings, size=size), people, cameras)


def _joined(first: Album, second: Album) -> Album:
    return Album(
        torch.cat([first.images, second.images]),
        np.concatenate([first.people, second.people]),
        np.concatenate([first.cameras, second.cameras]),
    )
