"""PRID 2011: two cameras, 385 people in camera A, 749 in camera B; the first 200 are seen by both.

The split is the one usual in the literature: of the people seen by both cameras a random half is for training, by both
cameras; the others are asked for by their images of camera A. The gallery is their images of camera B and, with single
shots, those of everyone whom only camera B saw (so 100 queries and 649 gallery images). With multiple shots only
people with more than 21 frames in each camera count, and the gallery has no one else. There is no official draw; the
seed decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from excise.datasets.files import Folder, Source
from excise.datasets.reid import Reid, Sighting, random_half
from excise.errors import InputError

SOURCE = Source(
    "PRID 2011",
    "https://www.tugraz.at/institute/icg/research/team-bischof/lrs/downloads/PRID11/",
    "prid_2011.zip (unpacked: single_shot/cam_a/person_0001.png and multi_shot/cam_a/person_0001/0001.png, likewise "
    "for cam_b)",
    "prid2011",
)
IN_BOTH = 200
MOST_FRAMES_LEFT_OUT = 21
CAMERAS = {"cam_a": 1, "cam_b": 2}
PERSON = re.compile(r"person_(\d{4})(\.png)?")
Shots = Literal["single", "multi"]
People = dict[int, list[Sighting]]


def load_prid(folder: Folder = None, *, shots: Shots = "single", seed: int = 0) -> Reid:
    """Train, query and gallery of the single-shot images, or of all frames of the multi-shot sequences."""
    if shots not in ("single", "multi"):
        raise InputError(f"shots must be 'single' or 'multi', not {shots!r}.")
    place = SOURCE.locate(folder)
    if (place / "prid_2011").is_dir():
        place = place / "prid_2011"
    read = _single if shots == "single" else _multi
    first, second = (_camera(place / f"{shots}_shot" / name, number, read) for name, number in CAMERAS.items())
    fewest = 1 if shots == "single" else MOST_FRAMES_LEFT_OUT + 1
    both = [
        person
        for person in sorted(first.keys() & second.keys())
        if person <= IN_BOTH and len(first[person]) >= fewest and len(second[person]) >= fewest
    ]
    if len(both) < 2:
        raise SOURCE.damaged(place, f"has {len(both)} people in both cameras, too few to split")
    chosen = random_half(both, seed)
    train, test = sorted(chosen), [person for person in both if person not in chosen]
    # only camera B's other people are distractors, as camera A's are never searched
    others = [person for person in sorted(second) if person > IN_BOTH] if shots == "single" else []
    return Reid(
        f"PRID 2011, {shots} shot, seed {seed}",
        tuple(seen for person in train for seen in (*first[person], *second[person])),
        tuple(seen for person in test for seen in first[person]),
        tuple(seen for person in (*test, *others) for seen in second[person]),
    )


def _camera(folder: Path, camera: int, read: Callable[[Path, int], People]) -> People:
    if not folder.is_dir():
        raise SOURCE.missing(folder)
    people = read(folder, camera)
    if not people:
        raise SOURCE.missing(folder, "has no images of people")
    return people


def _single(folder: Path, camera: int) -> People:
    """One image per person."""
    return {(person := _number(path)): [Sighting(path, person, camera)] for path in sorted(folder.glob("*.png"))}


def _multi(folder: Path, camera: int) -> People:
    """A folder of frames per person."""
    people = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        frames = sorted(place.glob("*.png"))
        if not frames:
            raise SOURCE.missing(place, "has no frames such as 0001.png")
        person = _number(place)
        people[person] = [Sighting(frame, person, camera) for frame in frames]
    return people


def _number(path: Path) -> int:
    match = PERSON.fullmatch(path.name)
    if match is None or int(match[1]) == 0:
        raise SOURCE.damaged(path, "is not named as this set's people are (person_0001)")
    return int(match[1])
