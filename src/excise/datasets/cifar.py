"""CIFAR-10 from the files of its binary version, plain or gzipped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from excise.datasets.files import Folder, Official, Source, find, read
from excise.errors import InputError

Part = Literal["train", "test"]
FILES: dict[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
OFFICIAL = Official(10_000 * RECORD)
SOURCE = Source(
    "CIFAR-10, binary version",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530), which holds data_batch_1.bin to data_batch_5.bin "
    f"and test_batch.bin of {OFFICIAL.size:,} bytes each,",
    "cifar-10-batches-bin",
)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_cifar(folder: Folder = None, part: Part = "train") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of shape (n, 3, 32, 32) and labels, from those of the part's files that the folder has, in their order.

    An official file has 10,000 images; one with fewer, but whole, images is read too.
    """
    if part not in FILES:
        raise InputError(f"part must be 'train' or 'test', not {part!r}.")
    folder = SOURCE.locate(folder)
    present = [folder / name for name in FILES[part] if find(folder / name) is not None]
    if not present:
        raise SOURCE.missing(folder, f"has none of {', '.join(FILES[part])} (or these with .gz added)")
    records = np.concatenate([_records(path) for path in present])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def normalised(images: NDArray[np.uint8]) -> Tensor:
    """Images as the pretrained networks expect them: from 0 to 1, then by ImageNet's mean and deviation per colour."""
    mean, deviation = (torch.tensor(values).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (torch.tensor(images, dtype=torch.float32) / 255 - mean) / deviation


def _records(path: Path) -> NDArray[np.uint8]:
    """A row of label and pixels per image."""
    found, content = read(path, SOURCE)
    if not content or len(content) % RECORD:
        raise SOURCE.damaged(
            found, f"is not one or more whole images of {RECORD:,} bytes ({OFFICIAL.against(content)})"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    wrong = np.flatnonzero(records[:, 0] > 9)
    if len(wrong):
        raise SOURCE.damaged(
            found, f"has the label {records[wrong[0], 0]} at image {wrong[0]:,}, but CIFAR-10's go from 0 to 9"
        )
    return records
