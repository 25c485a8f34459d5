"""QMUL GRID: 250 people seen twice in an underground station by two of eight cameras, and 775 images of others.

The official file of partitions names ten splits of 125 people to train on and 125 to test. The probe images of the
test people are the queries; the gallery is their other images and the 775 distractors (person 0): 900 images.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from excise.datasets.files import Folder, Source
from excise.datasets.reid import Reid, random_half, sightings_by_name
from excise.errors import InputError

PARTITIONS_FILE = "features_and_partitions.mat"
SOURCE = Source(
    "QMUL GRID",
    "https://personal.ie.cuhk.edu.hk/~ccloy/downloads_qmul_underground_reid.html",
    f"underground_reid.zip (unpacked: the folders probe with 250 images and gallery with 1,025, and {PARTITIONS_FILE})",
    "grid",
)
# person, camera, time and box, as in 0001_1_25004_107_32_106_221.jpeg
NAME = re.compile(r"(?P<person>\d{4})_(?P<camera>\d)_[\d_]+\.jpeg")
DISTRACTOR, PARTITIONS = 0, 10


def load_grid(folder: Folder = None, *, partition: int | None = 0, seed: int = 0) -> Reid:
    """Train, query and gallery of an official partition, 0 to 9; with None, of a random half drawn by the seed."""
    place = SOURCE.locate(folder)
    if (place / "underground_reid").is_dir():
        place = place / "underground_reid"
    probe = sightings_by_name(place / "probe", ".jpeg", NAME, SOURCE)
    gallery = sightings_by_name(place / "gallery", ".jpeg", NAME, SOURCE)
    people = sorted({seen.person for seen in probe})
    if DISTRACTOR in people:
        raise SOURCE.damaged(place / "probe", "has images of person 0, who should be in the gallery only")
    chosen = random_half(people, seed) if partition is None else _official(place / PARTITIONS_FILE, partition, people)
    return Reid(
        f"QMUL GRID, seed {seed}" if partition is None else f"QMUL GRID, partition {partition}",
        tuple(seen for seen in (*probe, *gallery) if seen.person in chosen),
        tuple(seen for seen in probe if seen.person not in chosen),
        tuple(seen for seen in gallery if seen.person not in chosen),
    )


def _official(path: Path, partition: int, people: Sequence[int]) -> set[int]:
    """The training people of an official partition."""
    if isinstance(partition, bool) or partition not in range(PARTITIONS):
        raise InputError(f"partition must be from 0 to {PARTITIONS - 1}, or None for a random half, not {partition!r}.")
    if not path.is_file():
        raise SOURCE.missing(path, "is missing (without it, partition=None draws a random half by the seed)")
    try:
        partitions = loadmat(path, variable_names=["trainIdxAll"])["trainIdxAll"]
        # each of the ten cells is a struct whose third field lists the people
        chosen = {int(person) for person in np.ravel(partitions.ravel()[partition].ravel()[0][2])}
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise SOURCE.damaged(
            path,
            f"has no readable partitions in trainIdxAll ({type(error).__name__}: {error}; "
            f"it has {path.stat().st_size:,} bytes)",
        ) from None
    if not chosen or not chosen < set(people):
        raise SOURCE.damaged(
            path, f"names in partition {partition} {len(chosen)} people, who are not some of the {len(people)} in probe"
        )
    return chosen
