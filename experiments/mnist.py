"""MNIST from the standard idx files, plain or gzipped."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def load_mnist(folder: Path, part: str = "train") -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images as rows of 784 values from 0 to 1, and labels; ``part`` is "train" or "t10k"."""
    images = _read(folder / f"{part}-images-idx3-ubyte", header=16).reshape(-1, 784)
    labels = _read(folder / f"{part}-labels-idx1-ubyte", header=8)
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} images but {len(labels)} labels; are the files complete?")
    return images.astype(np.float32) / np.float32(255), labels.astype(np.int64)


def _read(path: Path, header: int) -> NDArray[np.uint8]:
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise FileNotFoundError(f"{path} (or {zipped.name}) is missing; it is one of MNIST's four standard files.")
    with path.open("rb") if path.exists() else gzip.open(zipped) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)
