"""CIFAR-10 from the files of its binary version, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Part = Literal["train", "test"]
FILES: dict[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_cifar(folder: Path, part: Part = "train") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of shape (n, 3, 32, 32) and labels, from those of the part's files that the folder has, in their order."""
    if part not in FILES:
        raise ValueError(f"part must be 'train' or 'test', not {part!r}.")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; it should be the unpacked folder of CIFAR-10's binary version.")
    found = [path for name in FILES[part] if (path := _present(folder / name)) is not None]
    if not found:
        raise FileNotFoundError(
            f"{folder} has none of {', '.join(FILES[part])} (or these with .gz); "
            "are they the files of CIFAR-10's binary version?"
        )
    records = np.concatenate([_records(path) for path in found])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def normalised(images: NDArray[np.uint8]) -> Tensor:
    """Images as the pretrained networks expect them: from 0 to 1, then by ImageNet's mean and deviation per colour."""
    mean, deviation = (torch.tensor(values).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (torch.tensor(images, dtype=torch.float32) / 255 - mean) / deviation


def _present(path: Path) -> Path | None:
    """The file, or else its gzipped form, if there is one."""
    return next((file for file in (path, path.with_name(path.name + ".gz")) if file.exists()), None)


def _records(path: Path) -> NDArray[np.uint8]:
    """A row of label and pixels per image."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} can't be unpacked ({error}); is it complete?") from None
    if not content or len(content) % RECORD:
        raise ValueError(
            f"{path} has {len(content)} bytes, which is not one or more images of {RECORD} bytes; is it complete?"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise ValueError(f"{path} has the label {records[:, 0].max()}, but CIFAR-10's are from 0 to 9; is it CIFAR-10?")
    return records
