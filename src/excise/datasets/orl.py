"""The ORL (AT&T) faces: 40 people, 10 grey images each, from the official folders of PGM files or from one npz file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from excise.datasets.files import Folder, Source, read_image

PEOPLE, SHOTS, SHAPE = 40, 10, (112, 92)
SOURCE = Source(
    "The ORL (AT&T) database of faces",
    "https://cam-orl.co.uk/facedatabase.html",
    "att_faces.zip (unpacked: s1/1.pgm to s40/10.pgm, 92 pixels wide and 112 high)",
    "orl_faces",
)


@dataclass(frozen=True)
class Faces:
    """400 faces: ``images`` (400, 112, 92), ``labels`` (the person, from 0 to 39) and ``index`` (the shot, 1 to 10)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    index: NDArray[np.int64]


def load_orl(folder: Folder = None) -> Faces:
    """All faces, person by person: from the folders ``s1`` to ``s40`` if they are there, else from an npz file."""
    place = SOURCE.locate(folder)
    if (place / "s1").is_dir():
        return _from_folders(place)
    packed = sorted(place.glob("*.npz"))
    if not packed:
        raise SOURCE.missing(place, "has neither the folders s1 to s40 nor an npz file")
    return _from_npz(packed[0])


def _from_folders(place: Path) -> Faces:
    images = np.empty((PEOPLE * SHOTS, *SHAPE), dtype=np.uint8)
    labels, index = np.divmod(np.arange(PEOPLE * SHOTS), SHOTS)
    for row, (person, shot) in enumerate(zip(labels, index, strict=True)):
        path = place / f"s{person + 1}" / f"{shot + 1}.pgm"
        if not path.is_file():
            raise SOURCE.missing(path)
        image = read_image(path, mode="L")
        if image.shape != SHAPE:
            raise SOURCE.damaged(path, f"has {_by(image.shape)} pixels instead of {_by(SHAPE)} (height × width)")
        images[row] = image
    return Faces(images, labels.astype(np.int64), index.astype(np.int64) + 1)


def _from_npz(path: Path) -> Faces:
    expected = {"images": (PEOPLE * SHOTS, *SHAPE), "labels": (PEOPLE * SHOTS,), "index": (PEOPLE * SHOTS,)}
    try:
        with np.load(path, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in expected if name in packed}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SOURCE.damaged(path, f"can't be read ({error}; it has {path.stat().st_size:,} bytes)") from None
    for name, shape in expected.items():
        if name not in arrays:
            raise SOURCE.damaged(path, f"has no array {name!r}")
        if arrays[name].shape != shape:
            raise SOURCE.damaged(path, f"has {name} of shape {arrays[name].shape} instead of {shape}")
    counts = np.bincount(arrays["labels"].astype(np.int64), minlength=PEOPLE)
    if len(counts) != PEOPLE or np.any(counts != SHOTS):
        raise SOURCE.damaged(path, f"has labels other than {SHOTS} of each from 0 to {PEOPLE - 1}")
    return Faces(arrays["images"].astype(np.uint8), arrays["labels"].astype(np.int64), arrays["index"].astype(np.int64))


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
