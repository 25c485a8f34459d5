"""What a report shows of the samples themselves, if asked: their pictures or text, and where the models look.

A proof of deletion should not keep what was deleted, so a report has none of this unless it is passed in.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.evidence.sensitivity import sensitivity
from excise.task.batches import inputs_of, label_of, shown_input
from excise.task.ids import Ids, positions
from excise.task.task import Task

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]

COLOURS = np.array([(0, 34, 78), (53, 69, 108), (108, 110, 114), (166, 156, 108), (253, 231, 55)])  # dark to bright
LEAST_SCALE = 0.1  # so that noise alone does not light up
SHOWN_VALUES = 24  # of an input that is no picture


@dataclass(frozen=True)
class SampleView:
    """A sample to look at."""

    id: int
    target: str
    """What it was labelled as."""
    picture: Pixels | None = field(default=None, repr=False, compare=False)
    """Rows × columns, grey, or rows × columns × 3."""
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SensitivityMap:
    """Where models look in a sample: for each model's name, ξ of every pixel and the loss."""

    id: int
    maps: Mapping[str, Floats] = field(repr=False, compare=False)


def sample_views(task: Task, ids: Ids) -> tuple[SampleView, ...]:
    """Pictures or text of training samples, to be passed to ``write_report``.

    Images and vectors that make a square (28² numbers, say) are pictures; text, tokens and short vectors are words.

    >>> data = torch.utils.data.TensorDataset(torch.eye(4)[None], torch.tensor([7]))
    >>> task = Task(nn.Linear(4, 1), nn.CrossEntropyLoss(reduction="none"), data)
    >>> view, = sample_views(task, [0])
    >>> view.target, view.picture[0].tolist()
    ('7', [255, 0, 0, 0])
    """
    return tuple(_view(task, one) for one in positions(ids, len(task.train_set)).tolist())


def sensitivity_maps(
    task: Task,
    before: nn.Module,
    after: nn.Module,
    ids: Ids,
    *,
    seed: int,
    retrained: nn.Module | None = None,
    copies: int = 1000,
) -> tuple[SensitivityMap, ...]:
    """Where the models look in training samples, to be passed to ``write_report``; the inputs must be pictures.

    Args:
        task: Where the samples come from.
        before: The original model.
        after: The unlearned model.
        ids: Positions in ``train_set``.
        seed: For the noise, which is the same for every model.
        retrained: A model that never saw the samples.
        copies: Perturbed copies of each sample; see ``sensitivity``.
    """
    models = {"original": before, "unlearned": after} | ({"retrained": retrained} if retrained is not None else {})
    return tuple(
        SensitivityMap(
            one,
            {
                name: _flat(sensitivity(task, model, one, copies=copies, seed=seed + one))
                for name, model in models.items()
            },
        )
        for one in positions(ids, len(task.train_set)).tolist()
    )


def _view(task: Task, sample: int) -> SampleView:
    entry = task.samples[sample]
    inputs, target = shown_input(inputs_of(entry)), label_of(entry)
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu().numpy()
    picture = _picture(inputs) if isinstance(inputs, np.ndarray) else None
    return SampleView(sample, _words(target), picture, None if picture is not None else _words(inputs))


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value
    values = np.ravel(torch.as_tensor(value).cpu().numpy()) if isinstance(value, Tensor) else np.ravel(value)
    shown = ", ".join(f"{one:.4g}" if isinstance(one, np.floating) else str(one) for one in values[:SHOWN_VALUES])
    return shown + (f", … ({len(values)} in all)" if len(values) > SHOWN_VALUES else "")


def _picture(values: NDArray[Any]) -> Pixels | None:
    """Scaled from dark to bright; None where the values don't make a picture."""
    if not np.issubdtype(values.dtype, np.floating) and values.dtype != np.uint8:
        return None
    array = np.squeeze(values)
    side = math.isqrt(array.size)
    if array.ndim == 1 and side >= 4 and side * side == array.size:
        array = array.reshape(side, side)
    if array.ndim == 3 and array.shape[0] == 3:
        array = np.moveaxis(array, 0, -1)
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[-1] == 3)) or min(array.shape[:2]) < 2:
        return None
    low, high = float(array.min()), float(array.max())
    scaled: Pixels = np.round(255 * (array.astype(float) - low) / ((high - low) or 1)).astype(np.uint8)
    return scaled


def _flat(values: Floats) -> Floats:
    """A map as rows × columns: the highest of the channels; a vector as a square where it makes one, else a strip."""
    array = np.squeeze(values)
    while array.ndim > 2:
        array = array.max(axis=0)
    side = math.isqrt(array.size)
    if array.ndim < 2:
        array = array.reshape((side, side) if side >= 4 and side * side == array.size else (1, -1))
    return array


@dataclass(frozen=True)
class ShownSample:
    """A sample on the page; its pictures are addresses that hold the picture itself."""

    id: int
    target: str
    picture: str | None = field(repr=False)
    text: str | None = field(repr=False)
    maps: Mapping[str, str] = field(repr=False)
    """For each model's name, where it looks."""


@dataclass(frozen=True)
class ShownSamples:
    """All samples on the page, with one scale of colours for all maps."""

    samples: tuple[ShownSample, ...]
    highest: float
    """The value of the scale's bright end."""
    scale: str | None = field(repr=False)
    """A strip from dark to bright; None where there are no maps."""


def shown(samples: Sequence[SampleView], maps: Sequence[SensitivityMap]) -> ShownSamples:
    """All that was passed in, sample by sample."""
    views, found = {one.id: one for one in samples}, {one.id: one for one in maps}
    highest = max([LEAST_SCALE, *(float(values.max()) for one in maps for values in one.maps.values())])
    strip = _heat(np.linspace(0, highest, 128)[None], highest)
    return ShownSamples(
        samples=tuple(_shown(one, views.get(one), found.get(one), highest) for one in dict.fromkeys([*views, *found])),
        highest=highest,
        scale=_uri(strip) if maps else None,
    )


def _shown(sample: int, view: SampleView | None, found: SensitivityMap | None, highest: float) -> ShownSample:
    pictures = {} if found is None else {name: _uri(_heat(values, highest)) for name, values in found.maps.items()}
    if view is None:
        return ShownSample(sample, "", None, None, pictures)
    picture = None if view.picture is None else _uri(view.picture)
    return ShownSample(sample, view.target, picture, view.text, pictures)


def _heat(values: Floats, most: float) -> Pixels:
    places = np.clip(values / most, 0, 1) * (len(COLOURS) - 1)
    parts = [np.interp(places, np.arange(len(COLOURS)), COLOURS[:, k]) for k in range(3)]
    return np.round(np.stack(parts, -1)).astype(np.uint8)


def _uri(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def png(pixels: Pixels) -> bytes:
    """A picture, grey or red-green-blue, as a PNG file.

    >>> png(np.zeros((1, 1), np.uint8))[1:4]
    b'PNG'
    """
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(raw, 9)), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
