"""CelebA from its official files: attributes, the official split, and the aligned images, read when asked for.

Images are counted from 0, as rows of the attributes' table: row 0 is ``000001.jpg``.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from excise.datasets.files import (
    Folder,
    Official,
    Size,
    Source,
    checked_size,
    numbered,
    read,
    read_image,
    read_images,
    read_lines,
)
from excise.errors import InputError

ATTRIBUTES, PARTITION, IMAGES = "list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba"
SOURCE = Source(
    "CelebA",
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    f"{ATTRIBUTES}, {PARTITION} and {IMAGES}.zip (md5 00d2c5bc6d35e252742224ab0c1e8fcb; unpacked: "
    f"{IMAGES}/000001.jpg to 202599.jpg)",
    "celeba",
)
OFFICIAL = {
    ATTRIBUTES: Official(md5="75e246fa4810816ffd6ee81facbd244c"),
    PARTITION: Official(md5="d32c9cbf5e040fd4025c592c306e6668"),
}
PARTS = ("train", "valid", "test")  # 0, 1 and 2 in the official split


def image_name(row: int) -> str:
    """The file of an image: ``image_name(0)`` is ``"000001.jpg"``."""
    return f"{row + 1:06d}.jpg"


def load_attributes(folder: Folder = None) -> tuple[NDArray[np.int8], list[str]]:
    """All images × 40 attributes, -1 or 1, and the attributes' names."""
    found, content = read(SOURCE.locate(folder) / ATTRIBUTES, SOURCE)
    heading = io.BytesIO(content)
    first, names = heading.readline().strip(), heading.readline().decode("utf-8", "replace").split()
    if not first.isdigit():
        raise SOURCE.damaged(
            found, f"doesn't start with the number of images ({OFFICIAL[ATTRIBUTES].against(content)})"
        )
    try:
        table = pd.read_csv(
            heading, sep=r"\s+", header=None, index_col=0, dtype={0: str}, na_filter=False, float_precision="round_trip"
        )  # the quick reader of numbers crashes on long exponents; there are no numbers with a point in a sound file
        values = table.to_numpy(dtype=np.int64)
        whole = values.shape == (int(first), len(names)) and bool(np.all(np.abs(values) == 1))
        whole = whole and table.index.tolist() == [image_name(row) for row in range(len(table))]
    except (ValueError, OverflowError, pd.errors.ParserError, pd.errors.EmptyDataError):
        whole = False
    if not whole:
        raise SOURCE.damaged(found, _fault(content, int(first), len(names)))
    return values.astype(np.int8), names


def load_partition(folder: Folder = None) -> NDArray[np.int8]:
    """The official split, one number per image: 0 for training, 1 for validation, 2 for test."""
    found, lines = read_lines(SOURCE.locate(folder) / PARTITION, SOURCE)
    parts = []
    for row, (number, line) in enumerate(numbered(lines)):
        name, _, part = line.strip().partition(" ")
        if name != image_name(row) or part not in ("0", "1", "2"):
            raise SOURCE.damaged(
                found, f"has {line.strip()!r} in line {number} instead of {image_name(row)!r} and 0, 1 or 2"
            )
        parts.append(int(part))
    if not parts:
        raise SOURCE.damaged(found, f"is empty ({OFFICIAL[PARTITION].against(b'')})")
    return np.array(parts, dtype=np.int8)


class AlignedImages(Sequence[Tensor]):
    """The aligned images of some rows, each read from its file when it is asked for, as uint8 (3, height, width)."""

    def __init__(self, folder: Folder = None, rows: Sequence[int] | None = None, *, size: Size | None = None) -> None:
        self.folder = _images_folder(folder)
        self.size = None if size is None else checked_size(size)
        self.rows: Sequence[int] = _all_rows(self.folder) if rows is None else _checked_rows(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> AlignedImages: ...
    def __getitem__(self, index: int | slice) -> Tensor | AlignedImages:
        """One image, or (for a slice) the images of fewer rows, still unread."""
        if isinstance(index, slice):
            return AlignedImages(self.folder.parent, self.rows[index], size=self.size)
        return torch.from_numpy(read_image(self.folder / image_name(self.rows[index]), size=self.size))


def load_images(folder: Folder, rows: Sequence[int], *, size: Size = (64, 64)) -> Tensor:
    """LayerBlock images, resized to (height, width), as one uint8 tensor of shape (n, 3, height, width)."""
    place = _images_folder(folder)
    return read_images([place / image_name(row) for row in _checked_rows(rows)], size=size)


def _images_folder(folder: Folder) -> Path:
    place = SOURCE.locate(folder) / IMAGES
    if not place.is_dir():
        raise SOURCE.missing(place)
    return place


def _all_rows(folder: Path) -> range:
    """Every row from the first image to the last one there; none in between may be missing."""
    names = {path.name for path in folder.glob("*.jpg")}
    for row in range(len(names)):
        if image_name(row) not in names:
            raise SOURCE.damaged(
                folder, f"has {len(names):,} images of 202,599, but {image_name(row)} is not among them"
            )
    if not names:
        raise SOURCE.missing(folder, "has no images such as 000001.jpg")
    return range(len(names))


def _checked_rows(rows: Sequence[int]) -> list[int]:
    checked = [int(row) for row in rows]
    if any(row < 0 for row in checked):
        raise InputError(f"rows must be counted from 0 (which is {image_name(0)}), but one is {min(checked)}.")
    return checked


def _fault(content: bytes, count: int, columns: int) -> str:
    """What is wrong with the attributes: the first bad line, or their number."""
    lines = content.decode("utf-8", "replace").splitlines()[2:]
    for row, (number, line) in enumerate(numbered(lines)):
        name, *values = line.split()
        if name != image_name(row):
            return f"has {name!r} in line {number + 2} instead of {image_name(row)!r}"
        if len(values) != columns or not {"-1", "1"}.issuperset(values):
            return f"has in line {number + 2} {len(values)} values, which should be {columns} of -1 or 1"
    found = sum(1 for _ in numbered(lines))
    return (
        f"should have {count:,} images by its first line, but holds {found:,} ({OFFICIAL[ATTRIBUTES].against(content)})"
    )
