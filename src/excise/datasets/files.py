"""What the loaders share: where data lies, files plain or gzipped, images, and errors that say what to do."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excise.errors import DataError, InputError, MissingExtraError

Folder = str | Path | None
Size = tuple[int, int]
LOOKED_FOR = (
    "Data is looked for in the folder that the environment variable EXCISE_DATA names, and without it in "
    "~/.cache/excise/data ($XDG_CACHE_HOME/excise/data if that is set)."
)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: what errors tell a user whose file is missing or damaged."""

    name: str
    page: str
    contents: str  # the files to put in the folder
    folder: str  # what that folder is called under ``default_folder()``

    def where(self) -> str:
        """A sentence that says what to get and where."""
        return f"{self.name} is not downloaded for you: get {self.contents} from {self.page}."

    def missing(self, path: Path, what: str = "is missing") -> DataError:
        """The error for a file or folder that is not there."""
        told = f" {LOOKED_FOR}" if path.is_relative_to(default_folder()) else ""
        return DataError(f"{path} {what}. {self.where()}{told}")

    def damaged(self, path: Path, fault: str) -> DataError:
        """The error for a file that can't be what it should be."""
        return DataError(f"{path} {fault}; is it complete? {self.name} comes from {self.page}.")

    def locate(self, folder: Folder) -> Path:
        """The data set's folder: the given one, else the one of its name in ``default_folder()``."""
        place = default_folder() / self.folder if folder is None else Path(folder)
        if not place.is_dir():
            raise self.missing(place, "is not a folder" if place.exists() else "is missing")
        return place


@dataclass(frozen=True)
class Official:
    """Size and checksum of an official file, unpacked: named in errors, so that a user can compare."""

    size: int | None = None
    md5: str | None = None

    def against(self, content: bytes) -> str:
        """What was found, and what the official file has."""
        known = [] if self.size is None else [f"{self.size:,} bytes"]
        known += [] if self.md5 is None else [f"md5 {self.md5}"]
        found = f"{len(content):,} bytes"
        if self.md5 is not None:
            found += f", md5 {hashlib.md5(content, usedforsecurity=False).hexdigest()}"
        return f"found {found}; the official file has {', '.join(known)}" if known else f"found {found}"


def default_folder() -> Path:
    """Where data is looked for: ``$EXCISE_DATA``, else ``excise/data`` in the user's folder of caches.

    That folder is ``$XDG_CACHE_HOME``, else ``~/.cache``.
    """
    named = os.environ.get("EXCISE_DATA")
    if named:
        return Path(named).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches).expanduser() if caches else Path.home() / ".cache") / "excise" / "data"


def find(path: Path) -> Path | None:
    """The file, or else its gzipped form, if there is one."""
    return next((file for file in (path, path.with_name(path.name + ".gz")) if file.is_file()), None)


def read(path: Path, source: Source) -> tuple[Path, bytes]:
    """A file that may be gzipped: where it was found, and its unpacked content."""
    found = find(path)
    if found is None:
        raise source.missing(path, "is missing (and so is its gzipped form, with .gz added)")
    content = found.read_bytes()
    if found == path:
        return found, content
    try:
        return found, gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise source.damaged(found, f"can't be unpacked ({error}; it has {len(content):,} bytes)") from None


def read_lines(path: Path, source: Source) -> tuple[Path, list[str]]:
    """The lines of a text file that may be gzipped, and where it was found."""
    found, content = read(path, source)
    try:
        # not splitlines(), which would also break a line at the rarer separators that texts contain, such as U+2028
        return found, content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise source.damaged(found, f"is not text (byte {error.start:,} is not UTF-8)") from None


def numbered(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines that aren't blank, each with its number, from 1, as editors count."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def read_image(
    path: Path, *, size: Size | None = None, box: tuple[float, float, float, float] | None = None, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """An image as (channels, height, width), or (height, width) in mode "L"; cut to a box and resized if asked.

    ``size`` is (height, width). ``box`` is (left, top, right, bottom) in pixels; what lies outside the image is
    left away.
    """
    pillow = _pillow()
    if not path.is_file():
        raise DataError(f"{path} is missing; this image is named by the data set, but was not found.")
    try:
        with pillow.open(path) as opened:
            image = opened.convert(mode)
    # a truncated file is an OSError, a broken header can be any of the others
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} can't be read as an image ({type(error).__name__}: {error}; "
            f"it has {path.stat().st_size:,} bytes); is it complete?"
        ) from None
    if box is not None:
        image = image.crop(_inside(path, box, image.size))
    if size is not None:
        image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
    pixels: NDArray[np.uint8] = np.array(image, dtype=np.uint8)
    return pixels.transpose(2, 0, 1).copy() if pixels.ndim == 3 else pixels


def read_images(paths: Sequence[Path], *, size: Size) -> Tensor:
    """Images resized to (height, width), as one uint8 tensor of shape (n, 3, height, width)."""
    height, width = checked_size(size)
    images = torch.empty((len(paths), 3, height, width), dtype=torch.uint8)
    for row, path in enumerate(paths):
        images[row] = torch.from_numpy(read_image(path, size=(height, width)))
    return images


def checked_size(size: Size) -> Size:
    """(height, width), if these are positive whole numbers."""
    if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise InputError(f"size must be (height, width) in pixels, such as (64, 64), not {size!r}.")
    return size


def _inside(path: Path, box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The part of a box that lies in an image of (width, height), in whole pixels."""
    width, height = size
    left, top, right, bottom = (round(side) for side in box)
    left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    if left >= right or top >= bottom:
        raise DataError(f"{path} is {width} × {height} pixels, but its box is {box}: is it the image that was listed?")
    return left, top, right, bottom


def _pillow() -> Any:
    """Pillow's Image module, which only the loaders of images need."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Reading images needs Pillow; install it with: pip install 'excise[images]'") from None
    return Image
