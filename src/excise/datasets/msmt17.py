"""MSMT17: 4,101 people and 15 cameras on a campus, from the official lists; version 1, or version 2 (blurred faces).

The official lists have 30,248 images to train on, 2,373 to validate, 11,659 queries and 82,161 gallery images. Training
and test people are each numbered from 0: person 0 of the training images is not person 0 of the gallery.
"""

from __future__ import annotations

import re
from pathlib import Path

from excise.datasets.files import Folder, Source, numbered, read_lines
from excise.datasets.reid import Reid, Sighting

SOURCE = Source(
    "MSMT17",
    "https://www.pkuvmc.com/dataset.html",
    "MSMT17_V1 or MSMT17_V2 (unpacked: list_train.txt, list_val.txt, list_query.txt, list_gallery.txt and the folders "
    "train and test, in version 2 mask_train_v2 and mask_test_v2)",
    "msmt17",
)
VERSIONS = (("train", "test"), ("mask_train_v2", "mask_test_v2"))
# 0000/0000_000_01_0303morning_0015_0.jpg 0: the file (with the camera third in its name) and the person
LINE = re.compile(r"(?P<path>\S*?[^/\s_]+_[^/\s_]+_(?P<camera>\d\d)_\S+\.jpg)\s+(?P<person>\d+)")


def load_msmt17(folder: Folder = None, *, validation: bool = False) -> Reid:
    """Train, query and gallery; with ``validation`` the training images include those of list_val.txt."""
    place = _unpacked(SOURCE.locate(folder))
    train, test = _image_folders(place)
    trained = _listed(place / "list_train.txt", train)
    if validation:
        trained += _listed(place / "list_val.txt", train)
    query, gallery = (_listed(place / name, test) for name in ("list_query.txt", "list_gallery.txt"))
    return Reid("MSMT17", trained, query, gallery)


def _unpacked(place: Path) -> Path:
    """The folder itself, or the one in it that bears a version's name."""
    return next((place / name for name in ("MSMT17_V1", "MSMT17_V2") if (place / name).is_dir()), place)


def _image_folders(place: Path) -> tuple[Path, Path]:
    for train, test in VERSIONS:
        if (place / train).is_dir():
            if not (place / test).is_dir():
                raise SOURCE.missing(place / test)
            return place / train, place / test
    raise SOURCE.missing(place, "has neither the folder train nor mask_train_v2")


def _listed(path: Path, images: Path) -> tuple[Sighting, ...]:
    """The sightings of a list, whose files must all be there."""
    found, lines = read_lines(path, SOURCE)
    sightings = []
    for number, line in numbered(lines):
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise SOURCE.damaged(
                found,
                f"has {line.strip()!r} in line {number} instead of a line such as "
                "'0000/0000_000_01_0303morning_0015_0.jpg 0'",
            )
        image = images / match["path"]
        if not image.is_file():
            raise SOURCE.missing(image, f"is missing, but line {number} of {found.name} lists it")
        sightings.append(Sighting(image, int(match["person"]), int(match["camera"])))
    if not sightings:
        raise SOURCE.damaged(found, "is empty")
    return tuple(sightings)
