"""CelebA's attributes from the official file, plain or gzipped."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def load_attributes(folder: Path) -> tuple[NDArray[np.int8], list[str]]:
    """All images × 40 attributes, -1 or 1, and the attributes' names."""
    plain, zipped = folder / "list_attr_celeba.txt", folder / "list_attr_celeba.txt.gz"
    if not plain.exists() and not zipped.exists():
        raise FileNotFoundError(f"{folder} has no {plain.name}; it comes with CelebA's annotations.")
    path = plain if plain.exists() else zipped
    with gzip.open(path, "rt") if path == zipped else path.open() as file:
        count, names = int(file.readline()), file.readline().split()
        values = np.array([line.split()[1:] for line in file], dtype=np.int8)
    if values.shape != (count, len(names)):
        raise ValueError(f"{path} says {count} × {len(names)}, but holds {values.shape}: is it complete?")
    return values, names
