"""Figure 7, left: one person's images are removed one by one from a face recogniser."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from excise.datasets.orl import load_orl
from excise.datasets.vggface import identities, load_crops, present, vgg16_weights
from excise.errors import InputError
from excise.networks.vgg import vgg11, vgg16
from excise.privacy.mechanism import Privacy
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.published_removals import published_sigma
from excise.reproduce.parts.removals import (
    all_but,
    model_after,
    one_at_a_time,
    remove_one_by_one,
    supported_removals,
)
from excise.reproduce.parts.scores import is_right
from excise.task.task import Task
from excise.training.loop import Fitted
from excise.training.trace import GradientTrace
from excise.unlearning.drift import Drift
from excise.unlearning.paper import PaperStep
from excise.unlearning.selection import Joint, PerLayer
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
PAPER, QUIET, OURS, AT_ONCE, RETRAINED = "paper", "paper, without its noise", "ours", "ours, at once", "retrained"
BGR_MEAN = (93.5940, 104.7624, 129.1863)  # that VGG-Face subtracts from blue, green and red
WEIGHTS = ("vgg_face.mat", "vgg_face.pth", "VGG_FACE.pth")


@dataclass(frozen=True)
class Settings:
    """Those of appendix B; the text of the paper has 5 epochs and ε = 1e-5, the appendix 4 and 1e-4."""

    dataset: str = "vggface"
    people: int = 2622
    images: int = 100
    """Of each person, for training."""
    removed_people: int = 1
    """How often another person is removed; each is a run."""
    side: int = 224
    width: int = 64
    pretraining_epochs: int = 0
    """From scratch, where there are no published weights."""
    pretraining_rate: float = 0.01
    pretraining_decay: float = 5e-4
    epochs: int = 5
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    batch_size: int = 16
    copies: int = 100
    epsilon: float = 1e-5
    delta: float = 0.01
    noise_samples: int = 262_200
    """The noise is that for as many training images as the paper has."""
    drop: float = 0.1
    """Of the accuracy on other people, for supported removals."""
    full_side: int = 224
    full_width: int = 64
    full_classes: int = 2622
    """Of the network of random weights that speed and memory are taken from."""


@dataclass(frozen=True)
class Faces:
    """Images for training, and further ones of the same people."""

    train: TensorDataset
    test: TensorDataset
    network: Callable[[int], nn.Module]
    """Untrained, or with published weights, by a seed."""


def measure(run: Run[Settings]) -> Measured:
    """Accuracy on the person and on all others over the removals, and the cost of one removal at full size."""
    settings = run.settings
    faces = load_faces(run.data_dir, settings)
    runs = [_one_person(run, faces, number) for number in range(settings.removed_people)]
    cost = run.step("VGG-16 at full size", partial(full_size, settings))
    return {
        "removed": runs[0]["curves"][PAPER]["removed"],
        **{
            part: {
                way: {score: [one[part][way][score] for one in runs] for score in ("person", "others")}
                for way in runs[0][part]
            }
            for part in ("curves", "ends")
        },
        "half": [one["half"] for one in runs],
        "supported": [one["supported"] for one in runs],
        "drop": settings.drop,
        "sigma": published_sigma(settings, settings.noise_samples),
        "full_size": cost,
    }


def load_faces(data_dir: Path, settings: Settings) -> Faces:
    """ORL, or VGG-Face where users have its images and weights."""
    if settings.dataset == "orl":
        return _orl(data_dir, settings)
    if settings.dataset == "vggface":
        return _vggface(data_dir / "vgg_face_dataset", data_dir / "weights", settings)
    raise InputError(f"dataset must be 'orl' or 'vggface', not {settings.dataset!r}.")


def _orl(data_dir: Path, settings: Settings) -> Faces:
    found = load_orl(data_dir / "orl_faces")
    chosen = found.labels < settings.people
    grey = torch.tensor(found.images[chosen]).float().unsqueeze(1) / 255
    images = F.interpolate(grey, (settings.side, settings.side), mode="bilinear", antialias=True)
    images = ((images - images.mean()) / images.std()).expand(-1, 3, -1, -1).contiguous()
    labels = torch.tensor(found.labels[chosen])
    seen = torch.tensor(found.index[chosen] <= settings.images)
    return Faces(
        TensorDataset(images[seen], labels[seen]),
        TensorDataset(images[~seen], labels[~seen]),
        lambda seed: vgg11(seed, classes=settings.people, side=settings.side, width=settings.width),
    )


def _vggface(folder: Path, weights_dir: Path, settings: Settings) -> Faces:
    """The last tenth of a person's images is held out; pixels as the published weights expect them."""
    train: list[tuple[Tensor, int]] = []
    test: list[tuple[Tensor, int]] = []
    names = identities(folder)[: settings.people]
    for label, name in enumerate(names):
        faces = present(folder, name)[: settings.images + max(1, settings.images // 10)]
        if not faces:
            continue
        crops = load_crops(folder, name, faces, size=(settings.side, settings.side))
        pixels = _as_published(crops)
        train += [(image, label) for image in pixels[: settings.images]]
        test += [(image, label) for image in pixels[settings.images :]]
    weights = next((weights_dir / name for name in WEIGHTS if (weights_dir / name).exists()), None)

    def network(seed: int) -> nn.Module:
        model = vgg16(seed, classes=len(names), side=settings.side, width=settings.width)
        if weights is not None:
            model.load_pairs(vgg16_weights(weights))
        return model

    if not test:
        raise InputError(
            f"{folder / 'images'} has at most {settings.images} images of each person, which leaves none to test."
        )
    return Faces(_stacked(train), _stacked(test), network)


def _as_published(crops: Any) -> Tensor:
    """RGB bytes, images × 3 × height × width, as blue, green and red without their means."""
    pixels = torch.as_tensor(crops).float().flip(1)
    return pixels - torch.tensor(BGR_MEAN).reshape(3, 1, 1)


def _stacked(samples: Sequence[tuple[Tensor, int]]) -> TensorDataset:
    return TensorDataset(torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples]))


def _one_person(run: Run[Settings], faces: Faces, number: int) -> dict[str, Any]:
    """Everything for one person, who differs from run to run."""
    settings = run.settings
    seed = 1000 * run.seed + number
    labels = faces.train.tensors[1].numpy()
    rng = np.random.default_rng(seed)
    person = int(rng.permutation(np.unique(labels))[0])
    ids = rng.permutation(np.flatnonzero(labels == person)).tolist()
    fitted = _recogniser(run, faces, f"person {number}, original", [], seed)
    task = Task(fitted.model, LOSS, faces.train, faces.test, weight_decay=settings.weight_decay)
    scores = partial(accuracies, faces, person)
    outcome: dict[str, Any] = {"curves": {}, "ends": {}, "supported": {}}
    for way in (PAPER, QUIET, OURS):
        curve = run.step(
            f"person {number}, {way}",
            partial(_curve, run, task, fitted.trace, way, ids, scores, seed),
        )
        outcome["curves"][way] = curve
        bears = supported_removals(curve["removed"], curve["others"], drop=settings.drop)
        outcome["supported"][way] = bears.label
    outcome["ends"][AT_ONCE] = run.step(
        f"person {number}, {AT_ONCE}", partial(_at_once, _as_trained(task, settings), ids, scores, seed)
    )
    for part, gone in (("half", ids[: len(ids) // 2]), ("ends", ids)):
        again = _recogniser(run, faces, f"person {number}, retrained without {len(gone)}", gone, seed + 500)
        accuracy = run.step(
            f"person {number}, retrained without {len(gone)}, scores", partial(scores, again.model, gone)
        )
        if part == "ends":
            outcome["ends"][RETRAINED] = accuracy
        else:
            outcome["half"] = {"removed": len(gone), **accuracy}
    return outcome


def _recogniser(run: Run[Settings], faces: Faces, key: str, gone: Sequence[int], seed: int) -> Fitted:
    """Trained without some images: from scratch where there are no published weights, then fine-tuned as in the paper.

    The fine-tuning has the paper's weight decay, which its update takes for λ, and is so short that it hardly matters.
    """
    settings = run.settings
    kept = all_but(gone, len(faces.train))
    task = Task(faces.network(seed), LOSS, faces.train, weight_decay=settings.pretraining_decay)
    if settings.pretraining_epochs:
        options = {"epochs": settings.pretraining_epochs, "lr": settings.pretraining_rate}
        fitted = kept_fit(run, f"{key}, training", task, ids=kept, batch_size=settings.batch_size, seed=seed, **options)
        task = replace(task, model=fitted.model)
    return kept_fit(
        run,
        f"{key}, fine-tuning",
        replace(task, weight_decay=settings.weight_decay),
        ids=kept,
        epochs=settings.epochs,
        lr=settings.learning_rate,
        batch_size=settings.batch_size,
        schedule="constant",
        seed=seed,
        recorder=True,
    )


def _curve(
    run: Run[Settings],
    task: Task,
    trace: GradientTrace | None,
    way: str,
    ids: Sequence[int],
    scores: Callable[[nn.Module, Sequence[int]], dict[str, float]],
    seed: int,
) -> dict[str, list[float]]:
    """Accuracies over the removals of one person's images, one by one."""
    settings = run.settings
    if way == OURS:
        step = Step(PerLayer(copies=settings.copies))
        unlearner = Unlearner(_as_trained(task, settings), step, seed=seed)
    else:
        paper = PaperStep(trace, Joint("cheap", copies=settings.copies), noise_samples=settings.noise_samples)
        unlearner = Unlearner(task, paper, privacy=Privacy(noise_seed=seed, repeatable=True), seed=seed)
    noise = {"epsilon": settings.epsilon, "delta": settings.delta} if way == PAPER else {}
    with run.progress(way, len(ids)) as bar:
        return remove_one_by_one(
            task.model,
            one_at_a_time(unlearner, **noise),
            ids,
            every=max(1, len(ids) // 10),
            measure=scores,
            bar=bar,
        )


def _as_trained(task: Task, settings: Settings) -> Task:
    """With the weight decay that the weights really come from."""
    return replace(task, weight_decay=settings.pretraining_decay) if settings.pretraining_epochs else task


def _at_once(
    task: Task, ids: Sequence[int], scores: Callable[[nn.Module, Sequence[int]], dict[str, float]], seed: int
) -> dict[str, float]:
    """Our rule for a whole class or person: all images in one request, with passes over the others."""
    model = model_after(Unlearner(task, Drift.of_class(), seed=seed), ids)
    return scores(model, ids)


def accuracies(faces: Faces, person: int, model: nn.Module, _: Sequence[int] = ()) -> dict[str, float]:
    """Share of the person's images, and of all other people's, that are recognised, in training and test together."""
    images, labels = (torch.cat(parts) for parts in zip(faces.train.tensors, faces.test.tensors, strict=True))
    right = is_right(model, TensorDataset(images, labels), batch_size=64)
    theirs = labels == person
    return {"person": float(right[theirs].float().mean()), "others": float(right[~theirs].float().mean())}


def full_size(settings: Settings) -> dict[str, float]:
    """What one removal takes on the face network at its full size, with random weights and images."""
    generator = torch.Generator().manual_seed(0)
    side, classes = settings.full_side, settings.full_classes
    model = vgg16(0, classes=classes, side=side, width=settings.full_width)
    images = torch.randn(4, 3, side, side, generator=generator)
    task = Task(model, LOSS, TensorDataset(images, torch.arange(4) % classes), weight_decay=settings.pretraining_decay)
    unlearner = Unlearner(task, Step(Joint("cheap", copies=settings.copies)))
    began = time.perf_counter()
    unlearner.prepare()
    prepared = time.perf_counter() - began
    done = unlearner.forget([0])
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "prepare_seconds": prepared,
        "seconds": done.seconds,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20),
    }
