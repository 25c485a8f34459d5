"""VGG-Face: the official lists of images of 2,622 people, crops of the images a user has, and the network's weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.io import loadmat
from torch import Tensor

from excise.datasets.files import Folder, Size, Source, checked_size, numbered, read_image, read_lines
from excise.errors import InputError

IDENTITIES = 2_622
SOURCE = Source(
    "VGG-Face",
    "https://www.robots.ox.ac.uk/~vgg/data/vgg_face/",
    "vgg_face_dataset.tar.gz (unpacked: files/Aamir_Khan.txt and 2,621 more lists; the images themselves must be "
    "fetched from the addresses in the lists, into images/Aamir_Khan/00000001.jpg and so on)",
    "vgg_face_dataset",
)
WEIGHTS = Source(
    "The VGG-Face network",
    "https://www.robots.ox.ac.uk/~vgg/software/vgg_face/",
    "vgg_face_matconvnet.tar.gz (which holds vgg_face.mat), or vgg_face_torch.tar.gz (VGG_FACE.t7, to be converted to "
    "a PyTorch state dict),",
    "weights",
)
Layer = tuple[Tensor, Tensor]
Shape = tuple[int, ...]


def vgg16_shapes(
    channels: Sequence[int] = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512),
    hidden: Sequence[int] = (4096, 4096),
    classes: int = IDENTITIES,
    cells: int = 7,
) -> list[Shape]:
    """The shapes of the weights of a VGG-16: 13 convolutions, then 3 linear layers on cells × cells positions."""
    widths = [3, *channels]
    convolutions: list[Shape] = [(after, before, 3, 3) for before, after in pairwise(widths)]
    sizes = [channels[-1] * cells * cells, *hidden, classes]
    return convolutions + [(after, before) for before, after in pairwise(sizes)]


@dataclass(frozen=True)
class Face:
    """A line of an identity's list: where the image was, and where in it the face is, in pixels."""

    number: int
    url: str
    left: float
    top: float
    right: float
    bottom: float
    pose: float
    score: float
    curated: bool


def identities(folder: Folder = None) -> list[str]:
    """The names of the people who have a list, sorted."""
    place = SOURCE.locate(folder) / "files"
    names = sorted(path.stem for path in place.glob("*.txt"))
    if not names:
        raise SOURCE.missing(place, "has no lists such as Aamir_Khan.txt")
    return names


def load_identity(folder: Folder, name: str) -> list[Face]:
    """The lines of a person's official list."""
    found, lines = read_lines(SOURCE.locate(folder) / "files" / f"{name}.txt", SOURCE)
    faces = []
    for number, line in numbered(lines):
        face = _face(line)
        if face is None:
            raise SOURCE.damaged(
                found,
                f"has {line.strip()!r} in line {number} instead of: number, address, left, top, right, bottom, pose, "
                "detection score, curation (0 or 1)",
            )
        faces.append(face)
    if not faces:
        raise SOURCE.damaged(found, "is empty")
    return faces


def present(folder: Folder, name: str) -> list[Face]:
    """Those faces of a person's list whose images the user has; many of the addresses are long gone."""
    place = SOURCE.locate(folder)
    return [face for face in load_identity(place, name) if _image(place, name, face).is_file()]


def load_crops(folder: Folder, name: str, faces: Sequence[Face], *, size: Size = (224, 224)) -> Tensor:
    """The faces cut from a person's images and resized, as one uint8 tensor of shape (n, 3, height, width)."""
    place, (height, width) = SOURCE.locate(folder), checked_size(size)
    crops = torch.empty((len(faces), 3, height, width), dtype=torch.uint8)
    for row, face in enumerate(faces):
        box = (face.left, face.top, face.right, face.bottom)
        crops[row] = torch.from_numpy(read_image(_image(place, name, face), size=(height, width), box=box))
    return crops


def vgg16_weights(path: str | Path, *, shapes: Sequence[Shape] | None = None) -> list[Layer]:
    """Weights and biases of the 13 convolutions and 3 linear layers, in order, for any VGG-16 to take.

    ``path`` is the official ``vgg_face.mat``, or a PyTorch state dict (``.pt``, ``.pth`` or ``.safetensors``) converted
    from ``VGG_FACE.t7``, whatever its layers are called. The shapes must be those of ``shapes``, by default of the
    network for 2,622 people.
    """
    path = Path(path)
    if not path.is_file():
        raise WEIGHTS.missing(path)
    layers = _from_matconvnet(path) if path.suffix == ".mat" else _from_state(path)
    expected = vgg16_shapes() if shapes is None else list(shapes)
    if len(layers) != len(expected):
        raise WEIGHTS.damaged(
            path,
            f"has {len(layers)} layers with weights ({', '.join(name for name, *_ in layers)}), not {len(expected)}",
        )
    return [_fitted(path, *layer, shape) for layer, shape in zip(layers, expected, strict=True)]


def _face(line: str) -> Face | None:
    """A line's face, or None if it is none; the address may contain blanks."""
    fields = line.split()
    if len(fields) < 9 or not fields[0].isdigit() or fields[-1] not in ("0", "1"):
        return None
    try:
        left, top, right, bottom, pose, score = (float(field) for field in fields[-7:-1])
    except ValueError:
        return None
    url = " ".join(fields[1:-7])
    return Face(int(fields[0]), url, left, top, right, bottom, pose, score, fields[-1] == "1")


def _image(place: Path, name: str, face: Face) -> Path:
    return place / "images" / name / f"{face.number:08d}.jpg"


def _fitted(path: Path, name: str, weight: Tensor, bias: Tensor, shape: Shape) -> Layer:
    """A layer in the expected shape; a linear layer may have been saved as a convolution over its whole input."""
    if len(shape) == 2 and weight.ndim == 4:
        weight = weight.flatten(1)
    if weight.shape != shape or bias.shape != shape[:1]:
        raise WEIGHTS.damaged(
            path,
            f"has a layer {name} with weights of shape {tuple(weight.shape)} and a bias of {tuple(bias.shape)}, "
            f"where {shape} and {shape[:1]} are right",
        )
    return weight, bias


def _from_matconvnet(path: Path) -> list[tuple[str, Tensor, Tensor]]:
    try:
        content = loadmat(path, simplify_cells=True)
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise WEIGHTS.damaged(
            path, f"can't be read ({type(error).__name__}: {error}; it has {path.stat().st_size:,} bytes)"
        ) from None
    network = content.get("net", content)
    layers = network.get("layers") if isinstance(network, dict) else None
    if layers is None:
        raise WEIGHTS.damaged(path, "has no layers of a MatConvNet network")
    return [(str(layer["name"]), *_oihw(layer["weights"])) for layer in layers if len(layer.get("weights", ()))]


def _oihw(weights: Sequence[Any]) -> Layer:
    """MatConvNet's (height, width, in, out) as PyTorch's (out, in, height, width)."""
    kernel, bias = (np.asarray(array, dtype=np.float32) for array in weights)
    if kernel.ndim == 2:  # reading drops the height and width of 1
        kernel = kernel[None, None]
    return torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))), torch.from_numpy(np.ravel(bias).copy())


def _from_state(path: Path) -> list[tuple[str, Tensor, Tensor]]:
    """The layers of a state dict in the network's order, which the numbers in their names tell."""
    state = _state(path)
    names = [name.removesuffix(".weight") for name in state if name.endswith(".weight")]
    for name in names:
        if f"{name}.bias" not in state:
            raise WEIGHTS.damaged(path, f"has {name}.weight but no {name}.bias")
    # names such as features.10, conv_3_1, fc6 or 35.1: convolutions of 3 × 3 first, then by number
    names.sort(
        key=lambda name: (
            state[f"{name}.weight"].shape[2:] != (3, 3),
            [int(number) for number in re.findall(r"\d+", name)],
        )
    )
    return [(name, state[f"{name}.weight"], state[f"{name}.bias"]) for name in names]


def _state(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".t7":
        raise InputError(
            f"{path} is a file of Lua Torch, which is not read: "
            "convert it to a PyTorch state dict, or give vgg_face.mat instead."
        )
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many kinds for a damaged file
        raise WEIGHTS.damaged(
            path, f"can't be read ({type(error).__name__}: {error}; it has {path.stat().st_size:,} bytes)"
        ) from None
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WEIGHTS.damaged(path, "is not a state dict of tensors")
    return content
