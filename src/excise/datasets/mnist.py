"""MNIST from the standard idx files, plain or gzipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from excise.datasets.files import Folder, Official, Source, read
from excise.errors import InputError

SOURCE = Source(
    "MNIST",
    "http://yann.lecun.com/exdb/mnist/ (or its mirror https://ossci-datasets.s3.amazonaws.com/mnist/)",
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz",
    "mnist",
)
PREFIX = {"train": "train", "test": "t10k", "t10k": "t10k"}
SIDE = 28
OFFICIAL = {
    "train-images-idx3-ubyte": Official(47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Official(60_008, "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Official(7_840_016, "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Official(10_008, "27ae3e4e09519cfbb04c329615203637"),
}


def load_mnist(folder: Folder = None, part: str = "train") -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images as rows of 784 values from 0 to 1, and labels; ``part`` is "train" or "test" (also called "t10k").

    Other data in the same format, such as Fashion-MNIST, is read just as well.
    """
    if part not in PREFIX:
        raise InputError(f"part must be 'train' or 'test' (also called 't10k'), not {part!r}.")
    folder = SOURCE.locate(folder)
    images = _read_idx(folder / f"{PREFIX[part]}-images-idx3-ubyte", (SIDE, SIDE))
    labels = _read_idx(folder / f"{PREFIX[part]}-labels-idx1-ubyte", ())
    if len(images) != len(labels):
        raise SOURCE.damaged(folder, f"has {len(images):,} images but {len(labels):,} labels of the {part} part")
    if len(labels) and labels.max() > 9:
        raise SOURCE.damaged(folder, f"has the label {labels.max()} in the {part} part, but labels go from 0 to 9")
    return images.reshape(-1, SIDE * SIDE).astype(np.float32) / np.float32(255), labels.astype(np.int64)


def _read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The items of an idx file: a magic number, the number of items, the shape of each, and the bytes."""
    found, content = read(path, SOURCE)
    official = OFFICIAL[path.name]
    header = 8 + 4 * len(shape)
    if len(content) < header:
        raise SOURCE.damaged(found, f"has no whole header of {header} bytes ({official.against(content)})")
    magic, count, *sides = (int(value) for value in np.frombuffer(content, dtype=">u4", count=header // 4))
    expected = 0x0800 + 1 + len(shape)  # 8: unsigned bytes; then the number of dimensions
    if magic != expected:
        raise SOURCE.damaged(
            found, f"starts with the magic number {magic} instead of {expected} ({official.against(content)})"
        )
    if tuple(sides) != shape:
        raise SOURCE.damaged(found, f"says that its images are {sides[0]} × {sides[1]} pixels, not {SIDE} × {SIDE}")
    size = header + count * int(np.prod(shape, dtype=np.int64))
    if len(content) != size:
        raise SOURCE.damaged(
            found, f"should have {size:,} bytes by its header of {count:,} items ({official.against(content)})"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(count, *shape)
