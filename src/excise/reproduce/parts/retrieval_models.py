"""Networks that find people again: which there are, how they begin, how they are trained, and how good they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from excise.errors import InputError
from excise.evidence.utility import Retrieval, retrieval
from excise.networks.drawing import drawn
from excise.networks.embedder import Embedder
from excise.networks.mobilenet import mobilenet_v2
from excise.networks.resnet import resnet20, resnet50, resnet56
from excise.reproduce.parts.people import Album, People
from excise.task.ids import Ids, positions
from excise.task.task import Task
from excise.training.loop import batch_sizes
from excise.training.trace import GradientRecorder, GradientTrace

HEAD = ("linear.", "fc.", "classifier.")  # what the last layer is called in files of weights
TOGETHER = 64  # images in a forward pass
SMALL = 32  # rows of an image whose pixels are compared
Floats = NDArray[np.float64]


def network(name: str, weights_dir: Path, *, classes: int, width: float, side: int, seed: int) -> tuple[Embedder, str]:
    """A network with a last layer of random weights, and what the rest begins with: a file's name, or "random".

    Files are those in ``weights_dir`` that are called ``NAME-….pt`` or ``NAME.pt``, the first by name.
    """
    made = _made(name, classes=classes, width=width, side=side, seed=seed)
    files = sorted(weights_dir.glob(f"{name}-*.pt")) + sorted(weights_dir.glob(f"{name}.pt"))
    if not files or width != 1:  # a narrower network has weights of other shapes
        return made, "random"
    state = torch.load(files[0], map_location="cpu", weights_only=True)
    body = {key: value for key, value in state.items() if not key.startswith(HEAD)}
    try:
        missing, unknown = made.load_state_dict(body, strict=False)
    except RuntimeError as error:
        raise InputError(f"{files[0]} does not fit {name}: {str(error).splitlines()[-1].strip()}") from None
    missing = [key for key in missing if not key.startswith(HEAD) and not key.endswith("num_batches_tracked")]
    if missing or unknown:
        raise InputError(f"{files[0]} does not fit {name}: it lacks {missing[:3]} and has {unknown[:3]} in excess.")
    return made, files[0].name


def _made(name: str, *, classes: int, width: float, side: int, seed: int) -> Embedder:
    made: dict[str, Callable[[], Embedder]] = {
        "resnet20": lambda: resnet20(seed=seed),
        "resnet56": lambda: resnet56(seed=seed),
        "resnet50": lambda: resnet50(seed, classes=classes, width=round(64 * width)),
        "mobilenet_v2": lambda: mobilenet_v2(seed, classes=classes, width=width, side=side),
    }
    if name not in made:
        raise InputError(f"networks has {name!r}; there are {', '.join(made)}.")
    model = made[name]()
    inputs = model.linear.in_features
    model.linear = drawn(lambda: nn.Linear(inputs, classes), seed)
    return model


@dataclass(frozen=True)
class Training:
    """Adam with a learning rate that falls to a tenth once, as in appendix B."""

    epochs: int
    learning_rate: float
    batch_size: int
    shift: int
    """Each batch is moved by up to so many pixels, as torchreid's random crops do."""
    falls_after: float
    """The share of the epochs after which the learning rate falls."""

    def __call__(
        self, task: Task, *, seed: int, ids: Ids | None = None, record: bool = False
    ) -> tuple[nn.Module, GradientTrace | None]:
        """A trained copy of the task's model, and the trace that the paper's method needs if it is asked for."""
        model = copy.deepcopy(task.model)
        chosen = positions(ids, len(task.train_set))
        recorder = GradientRecorder(task, ids=chosen) if record else None
        sizes = batch_sizes(len(chosen), self.batch_size)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, weight_decay=task.weight_decay)
        fall = max(1, round(self.falls_after * self.epochs))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, fall, 0.1)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(1, self.epochs + 1):
            model.train()
            for some in chosen[torch.randperm(len(chosen), generator=generator)].split(sizes):
                images, people = task.batch(some)
                loss = task.losses(model, [shifted(images, self.shift, generator), people]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            scheduler.step()
            if recorder is not None and epoch > self.epochs - 2:
                recorder.end_of_epoch(model)
        return model.eval(), None if recorder is None else recorder.trace()


def shifted(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """All images moved alike, by up to so many pixels each way; what comes in is the edge repeated."""
    if most == 0:
        return images
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=generator).tolist()
    padded = F.pad(images, (most, most, most, most), mode="replicate")
    return padded[:, :, down : down + images.shape[2], right : right + images.shape[3]]


@dataclass(frozen=True)
class Seen:
    """What a model makes of the queries and the gallery."""

    query: Floats
    """Features."""
    gallery: Floats
    confidences: Floats
    """Of the queries of training people: the probability of who they are; NaN for others."""
    maps: Floats
    """Activation maps of the queries, each of length one."""


def look(model: nn.Module, people: People) -> Seen:
    """Pass the queries and the gallery through a model."""
    assert isinstance(model, Embedder)
    features, probabilities, maps = _answers(model, people.query)
    known = people.query.people < people.trained
    confidences = np.full(len(known), np.nan)
    confidences[known] = probabilities[known, people.query.people[known]]
    same = people.gallery is people.query
    return Seen(features, features if same else _answers(model, people.gallery)[0], confidences, maps)


def _answers(model: Embedder, album: Album) -> tuple[Floats, Floats, Floats]:
    features, probabilities, maps = [], [], []
    device = next(model.parameters()).device
    with torch.no_grad():
        for low in range(0, len(album), TOGETHER):
            images = album.pixels(np.arange(low, min(low + TOGETHER, len(album)))).to(device)
            last = model.last_maps(images)
            usual = type(model).features is Embedder.features  # else the network would be run twice
            found = last.mean(dim=(2, 3)) if usual else model.features(images)
            features.append(found)
            probabilities.append(model.linear(found).softmax(1))
            maps.append(activation_maps(last))
    together = (torch.cat(parts).double().cpu().numpy() for parts in (features, probabilities, maps))
    return tuple(together)  # type: ignore[return-value]


def activation_maps(last: Tensor) -> Tensor:
    """As torchreid draws them: the squares of the last maps, summed over channels, each scaled to length one.

    >>> activation_maps(torch.tensor([[[[3.0, 0.0]], [[0.0, 2.0]]]])).mul(97**0.5).round().tolist()
    [[[9.0, 4.0]]]
    """
    sums = (last**2).sum(1)
    unit: Tensor = F.normalize(sums.flatten(1), dim=1).view_as(sums)
    return unit


def scores(seen: Seen, before: Seen, people: People, person: int) -> dict[str, float]:
    """How well a person and everyone else is found, how sure the head is of them, and how far their maps changed."""
    who = people.query.people
    groups = {"person": who == person, "rest": who != person, "unseen": who >= people.trained}
    query, gallery = comparable(seen.query), comparable(seen.gallery)
    found: dict[str, float] = {}
    for name, rows in groups.items():
        result = _retrieved(people, query, gallery, rows)
        found[f"{name} mAP"], found[f"{name} rank-1"] = result.mean_average_precision, result.rank1
    change = 1 - np.nan_to_num(seen.maps * before.maps).sum(axis=(1, 2))
    kept = (who != person) & (who < people.trained)
    for name, rows in (("person", who == person), ("rest", kept)):
        found[f"{name} confidence"] = float(np.mean(np.nan_to_num(seen.confidences[rows])))
        found[f"{name} map change"] = float(np.mean(change[rows]))
    return {name: round(value, 4) for name, value in found.items()}


def by_pixels(people: People) -> float:
    """The mAP of everyone without a network, by the pixels of small images: what training has to surpass."""
    query, gallery = (comparable(_small(album)) for album in (people.query, people.gallery))
    everyone = np.ones(len(people.query), dtype=bool)
    return _retrieved(people, query, gallery, everyone).mean_average_precision


def _retrieved(people: People, query: Floats, gallery: Floats, rows: NDArray[np.bool_]) -> Retrieval:
    """How well the queries of some rows find their people among the whole gallery."""
    return retrieval(
        query[rows],
        people.query.people[rows],
        gallery,
        people.gallery.people,
        query_cameras=people.query.cameras[rows],
        gallery_cameras=people.gallery.cameras,
    )


def _small(album: Album) -> Floats:
    """Pixels of images that are shrunk to a height of 32, so that those of a large gallery fit into memory."""
    parts = []
    for low in range(0, len(album), TOGETHER):
        images = album.pixels(np.arange(low, min(low + TOGETHER, len(album))))
        width = max(1, round(SMALL * images.shape[3] / images.shape[2]))
        parts.append(F.interpolate(images, (SMALL, width), mode="area").flatten(1))
    return np.asarray(torch.cat(parts).double().numpy())


def comparable(features: Floats) -> Floats:
    """Features of a model that noise has ruined, zeros or not finite, count as all alike: they find no one.

    >>> comparable(np.array([[3.0, 4.0], [0.0, 0.0], [np.inf, 1.0]])).tolist()
    [[3.0, 4.0], [1.0, 1.0], [1.0, 1.0]]
    """
    sound = np.isfinite(features).all(axis=1, keepdims=True) & features.any(axis=1, keepdims=True)
    return np.where(sound, features, 1.0)
