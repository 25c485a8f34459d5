"""Remark 2: does ξ of every pixel and the output explain what a network looks at, and better than its gradient?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from excise.datasets.cifar import load_cifar, normalised
from excise.datasets.mnist import load_mnist
from excise.networks.resnet import resnet20
from excise.networks.small import mlp
from excise.reproduce.experiment import Claim, Experiment, Measured, Verdict, clearly_above, judged
from excise.reproduce.kept import kept_fit
from excise.reproduce.plots import tidy
from excise.reproduce.run import Run
from excise.sensitivity import sensitivity
from excise.task import Task

LOSS = nn.CrossEntropyLoss(reduction="none")
MNIST, CIFAR = "MNIST", "CIFAR-10"
WEIGHTS = "resnet20-12fca82f_state_dict.pt"
XI, GRADIENT, RANDOM = "ξ", "gradient", "random"
COLOURS = {XI: "#1f77b4", GRADIENT: "#222222", RANDOM: "#b08900"}
Map = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Of this experiment; the remark names none, so the perturbations are those of appendix B."""

    mnist_images: int = 50
    """That are explained: from the test set, and classified rightly."""
    cifar_images: int = 24
    copies: int = 1000
    noise: float = 0.1
    patch: int = 4
    """The side of the squares that are perturbed as one, beside single pixels."""
    steps: int = 32
    """Of a deletion curve."""
    studied: int = 6
    """Images of MNIST for which copies and noise are varied."""
    copies_tried: tuple[int, ...] = (250, 1000, 4000, 16000)
    noises_tried: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    samples: int = 10000
    epochs: int = 10
    shown: int = 3
    """Images of each set that the figure shows."""


@dataclass(frozen=True)
class Explained:
    """A trained network and the images it is asked about."""

    name: str
    task: Task
    """Its ``train_set`` is the images that are explained."""
    blank: Tensor
    """What a deleted pixel is replaced by: the mean image of the training set."""

    @property
    def images(self) -> Tensor:
        """(n, channels, height, width)."""
        images: Tensor = self.task.train_set.tensors[0]
        return images

    @property
    def labels(self) -> Tensor:
        """Their classes."""
        labels: Tensor = self.task.train_set.tensors[1]
        return labels


@dataclass(frozen=True)
class PatchNoise:
    """Add one N(0, scale²) to all values of a square of pixels, in all channels alike."""

    side: int = 1
    scale: float = 0.1

    def __call__(self, inputs: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """Perturbed copies of a batch of one."""
        height, width = inputs.shape[-2:]
        coarse = torch.randn(copies, 1, height // self.side, width // self.side, generator=generator)
        fine = coarse.repeat_interleave(self.side, 2).repeat_interleave(self.side, 3)
        return inputs + self.scale * fine.to(inputs)


# ---------------------------------------------------------------------------------------------------- maps


def xi_map(explained: Explained, image: int, *, side: int, copies: int, noise: float, seed: int) -> Map:
    """ξ of each pixel, or square of pixels, and the loss: (height, width)."""
    found = sensitivity(
        explained.task,
        explained.task.model,
        image,
        copies=copies,
        perturbation=PatchNoise(side, noise),
        seed=seed,
    )
    return pooled(found.mean(axis=0), side)


def gradient_map(explained: Explained, image: int, *, side: int) -> Map:
    """The loss's gradient with respect to each pixel, by its size, summed over channels and over squares of pixels."""
    inputs = explained.images[image : image + 1].clone().requires_grad_()
    loss = LOSS(explained.task.model(inputs), explained.labels[image : image + 1]).sum()
    (gradient,) = torch.autograd.grad(loss, inputs)
    return pooled(gradient[0].abs().sum(0).double().numpy(), side)


def pooled(values: Map, side: int) -> Map:
    """The mean of each square, at all of its pixels.

    >>> pooled(np.array([[1.0, 3.0], [5.0, 7.0]]), 2).tolist()
    [[4.0, 4.0], [4.0, 4.0]]
    """
    height, width = values.shape
    squares = values.reshape(height // side, side, width // side, side).mean(axis=(1, 3))
    spread: Map = np.kron(squares, np.ones((side, side)))
    return spread


def random_map(shape: tuple[int, int], *, side: int, seed: int) -> Map:
    """A map that says nothing: every square has a random value."""
    return pooled(np.random.default_rng(seed).random(shape), side)


# ---------------------------------------------------------------------------------------------------- curves


def curves(explained: Explained, image: int, values: Map, *, side: int, steps: int) -> tuple[list[float], list[float]]:
    """The true class's probability while pixels are deleted, and while they are inserted, the highest values first.

    Entry k is after the share k / steps of all squares.
    """
    original, blank = explained.images[image], explained.blank
    squares = values[::side, ::side]
    rank = np.empty(squares.size, dtype=np.int64)
    rank[np.argsort(-squares, axis=None, kind="stable")] = np.arange(squares.size)
    rank = np.kron(rank.reshape(squares.shape), np.ones((side, side), dtype=np.int64))
    gone = np.rint(np.linspace(0, squares.size, steps + 1)).astype(np.int64)
    first = torch.tensor(rank[None] < gone[:, None, None])[:, None]
    found = []
    for inputs in (torch.where(first, blank, original), torch.where(first, original, blank)):
        with torch.no_grad():
            probability = F.softmax(explained.task.model(inputs), dim=1)[:, explained.labels[image]]
        found.append([round(float(p), 4) for p in probability])
    return found[0], found[1]


def area(curve: Any) -> Any:
    """The mean height of curves (rows), by the trapezoidal rule."""
    curve = np.asarray(curve, dtype=float)
    return (curve[..., 1:] + curve[..., :-1]).mean(axis=-1) / 2


# ---------------------------------------------------------------------------------------------------- measuring


def measure(run: Run[Settings]) -> Measured:
    """Deletion and insertion by each map, on MNIST and on CIFAR-10, and what the maps depend on."""
    settings = run.settings
    digits, objects = _mnist(run), _cifar(run)
    return {
        "copies": settings.copies,
        "patch": settings.patch,
        "sets": {explained.name: _all_images(run, explained) for explained in (digits, objects)},
        "copies tried": {
            "at": list(settings.copies_tried),
            "found": [
                run.step(
                    f"{MNIST}, {copies} copies", partial(_study, digits, settings, run.seed, copies, settings.noise)
                )
                for copies in settings.copies_tried
            ],
        },
        "noises tried": {
            "at": list(settings.noises_tried),
            "found": [
                run.step(
                    f"{MNIST}, noise {noise:g}", partial(_study, digits, settings, run.seed, settings.copies, noise)
                )
                for noise in settings.noises_tried
            ],
        },
    }


def _all_images(run: Run[Settings], explained: Explained) -> dict[str, Any]:
    outcomes = [
        run.step(f"{explained.name}, image {image}", partial(_one_image, explained, image, run.settings, run.seed))
        for image in range(len(explained.images))
    ]
    return {
        **_summary(outcomes, run.settings.patch),
        "shown": [outcome["picture"] for outcome in outcomes[: run.settings.shown]],
    }


def _mnist(run: Run[Settings]) -> Explained:
    settings = run.settings
    images, labels = (torch.tensor(array) for array in load_mnist(run.data_dir / "mnist"))
    rng = np.random.default_rng([run.seed, 0])
    chosen = torch.tensor(rng.permutation(len(images))[: settings.samples])
    network = nn.Sequential(nn.Flatten(), mlp(run.seed))
    images = images.view(-1, 1, 28, 28)
    start = Task(network, LOSS, TensorDataset(images[chosen], labels[chosen]), weight_decay=0.0005)
    model = kept_fit(run, f"{MNIST}, training", start, epochs=settings.epochs, seed=run.seed).model
    tests, truth = (torch.tensor(array) for array in load_mnist(run.data_dir / "mnist", "test"))
    return _explained(MNIST, model, tests.view(-1, 1, 28, 28), truth, images.mean(0), settings.mnist_images, rng)


def _cifar(run: Run[Settings]) -> Explained:
    model = resnet20(run.data_dir / "weights" / WEIGHTS)
    folder = run.data_dir / "cifar-10-batches-bin"
    tests, truth = load_cifar(folder, "test")
    blank = normalised(load_cifar(folder)[0]).mean(0)
    rng = np.random.default_rng([run.seed, 1])
    return _explained(CIFAR, model, normalised(tests), torch.tensor(truth), blank, run.settings.cifar_images, rng)


def _explained(
    name: str, model: nn.Module, images: Tensor, labels: Tensor, blank: Tensor, count: int, rng: np.random.Generator
) -> Explained:
    """The first images, in random order, that the network classifies rightly."""
    chosen: list[int] = []
    for index in rng.permutation(len(images)).tolist():
        with torch.no_grad():
            right = model(images[index : index + 1]).argmax() == labels[index]
        if right:
            chosen.append(index)
        if len(chosen) == count:
            break
    return Explained(name, Task(model, LOSS, TensorDataset(images[chosen], labels[chosen])), blank)


def _one_image(explained: Explained, image: int, settings: Settings, seed: int) -> dict[str, Any]:
    """Curves by each map, single pixels and squares, and how alike the maps are."""
    pixels = explained.images[image].permute(1, 2, 0).double().numpy()
    picture = {"image": packed(pixels)}
    found: dict[str, Any] = {"picture": picture}
    for side in (1, settings.patch):
        maps = _maps(explained, image, side, settings, seed)
        again = _xi(explained, image, side, settings, seed + 1)
        deleted, inserted = {}, {}
        for name, values in maps.items():
            deleted[name], inserted[name] = curves(explained, image, values, side=side, steps=settings.steps)
        found[str(side)] = {
            "deleted": deleted,
            "inserted": inserted,
            "with gradient": rank_correlation(maps[XI], maps[GRADIENT], side),
            "with itself": rank_correlation(maps[XI], again, side),
        }
        picture |= {f"{name} {side}": packed(maps[name][::side, ::side]) for name in (XI, GRADIENT)}
    return found


def _xi(explained: Explained, image: int, side: int, settings: Settings, seed: int) -> Map:
    return xi_map(explained, image, side=side, copies=settings.copies, noise=settings.noise, seed=1000 * seed + image)


def _maps(explained: Explained, image: int, side: int, settings: Settings, seed: int) -> dict[str, Map]:
    shape = tuple(explained.images.shape[-2:])
    return {
        XI: _xi(explained, image, side, settings, seed),
        GRADIENT: gradient_map(explained, image, side=side),
        RANDOM: random_map((shape[0], shape[1]), side=side, seed=1000 * seed + image),
    }


def rank_correlation(one: Map, other: Map, side: int) -> float:
    """Spearman's, over the squares; 0 where a map is constant."""
    a, b = one[::side, ::side].ravel(), other[::side, ::side].ravel()
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return round(float(spearmanr(a, b).statistic), 4)


def _study(explained: Explained, settings: Settings, seed: int, copies: int, noise: float) -> dict[str, Any]:
    """Deletion area and likeness to a second map of other noise, for single pixels and squares."""
    found: dict[str, Any] = {}
    for side in (1, settings.patch):
        areas, alike = [], []
        for image in range(min(settings.studied, len(explained.images))):
            of_noise: Callable[[int], Map] = partial(_other_xi, explained, image, side, copies, noise)
            one, two = of_noise(1000 * seed + image), of_noise(1000 * (seed + 1) + image)
            areas.append(float(area(curves(explained, image, one, side=side, steps=settings.steps)[0])))
            alike.append(rank_correlation(one, two, side))
        found[str(side)] = {"deleted": round(float(np.mean(areas)), 4), "with itself": round(float(np.mean(alike)), 4)}
    return found


def _other_xi(explained: Explained, image: int, side: int, copies: int, noise: float, seed: int) -> Map:
    return xi_map(explained, image, side=side, copies=copies, noise=noise, seed=seed)


def _summary(outcomes: Sequence[dict[str, Any]], patch: int) -> dict[str, Any]:
    """Mean curves, and the areas of every image."""
    summary: dict[str, Any] = {}
    for side in ("1", str(patch)):
        ones = [outcome[side] for outcome in outcomes]
        summary[side] = {
            "with gradient": round(float(np.mean([one["with gradient"] for one in ones])), 4),
            "with itself": round(float(np.mean([one["with itself"] for one in ones])), 4),
        }
        for way in ("deleted", "inserted"):
            every = {name: np.asarray([one[way][name] for one in ones]) for name in (XI, GRADIENT, RANDOM)}
            summary[side][way] = {
                name: {
                    "mean": [round(float(p), 4) for p in values.mean(0)],
                    "error": [round(float(e), 4) for e in values.std(0) / np.sqrt(len(values))],
                    "areas": [round(float(a), 4) for a in area(values)],
                }
                for name, values in every.items()
            }
    return summary


def packed(values: Map) -> dict[str, Any]:
    """A picture in few letters: its least value (0 for a map) to its greatest as a byte each, in hexadecimals."""
    low, high = float(values.min()) if values.ndim == 3 else 0.0, float(values.max())
    scaled = 255 * (np.maximum(values, low) - low) / max(high - low, 1e-12)
    return {"shape": list(values.shape), "hex": np.rint(scaled).astype(np.uint8).tobytes().hex()}


def unpacked(picture: Measured) -> NDArray[np.uint8]:
    """What ``packed`` was given, as bytes."""
    return np.frombuffer(bytes.fromhex(picture["hex"]), dtype=np.uint8).reshape(picture["shape"])


# ---------------------------------------------------------------------------------------------------- showing


def draw(measured: Measured, figure: Any) -> None:
    """A few images with their maps; deletion curves; what the maps depend on."""
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    _draw_maps(measured, left)
    panels = right.subplots(2, 2)
    for axes, (name, found) in zip(panels[0], measured["sets"].items(), strict=True):
        _draw_curves(axes, found, str(measured["patch"]), name)
    for axes, (key, label) in zip(panels[1], (("copies tried", "copies"), ("noises tried", "noise")), strict=True):
        _draw_study(axes, measured[key], str(measured["patch"]), label)
    panels[0][1].legend(fontsize=7, frameon=False, handlelength=3)
    for axes in panels[1]:
        axes.legend(fontsize=7, frameon=False, handlelength=3.5)


def _draw_maps(measured: Measured, figure: Any) -> None:
    patch = measured["patch"]
    columns = {"image": "image", f"{XI} 1": "ξ, pixels", f"{XI} {patch}": "ξ, squares", f"{GRADIENT} 1": "gradient"}
    pictures = [picture for found in measured["sets"].values() for picture in found["shown"]]
    for row, picture in zip(figure.subplots(len(pictures), len(columns), squeeze=False), pictures, strict=True):
        for axes, key in zip(row, columns, strict=True):
            axes.imshow(unpacked(picture[key]), cmap="gray" if key == "image" else "Blues", interpolation="nearest")
            axes.set_axis_off()
            if picture is pictures[0]:
                axes.set_title(columns[key], fontsize=9)


def _draw_curves(axes: Any, found: Measured, patch: str, name: str) -> None:
    for side, dashes in (("1", "-"), (patch, "--")):
        for series, curve in found[side]["deleted"].items():
            mean, error = np.asarray(curve["mean"]), np.asarray(curve["error"])
            across = np.linspace(0, 1, len(mean))
            label = f"{series}, {'pixels' if side == '1' else 'squares'}"
            axes.plot(across, mean, color=COLOURS[series], linestyle=dashes, linewidth=1.4, label=label)
            axes.fill_between(across, mean - error, mean + error, color=COLOURS[series], alpha=0.12, linewidth=0)
    axes.set_ylim(0, 1.02)
    tidy(axes, x="share deleted, most important first", y="probability of the true class", title=name)


def _draw_study(axes: Any, study: Measured, patch: str, label: str) -> None:
    for key, colour, words in (
        ("with itself", "#7b4fa3", "a second map is like it"),
        ("deleted", "#1f77b4", "deletion area"),
    ):
        for side, dashes in (("1", "-"), (patch, "--")):
            values = [one[side][key] for one in study["found"]]
            kind = "pixels" if side == "1" else "squares"
            axes.plot(study["at"], values, dashes, marker=".", color=colour, label=f"{words}, {kind}")
    axes.set_xscale("log")
    axes.set_xticks(study["at"], [f"{at:g}" for at in study["at"]])
    axes.minorticks_off()
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.02)
    tidy(axes, x=label, y="rank correlation, area", title=f"{MNIST}: ξ and the {label}")


ALIKE = 0.1
RULE = (
    "Confirmed if deleting and inserting in the order of ξ both do more than a random order, by two standard errors, "
    f"and a second map has a rank correlation of {ALIKE:g} or more with it: else it shows the copies, not the image."
)


def judge(measured: Measured) -> list[Claim]:
    """ξ explains if both orders do more than a random one, by two standard errors, and a second map says the same."""
    claims = []
    for name, found in measured["sets"].items():
        for side, what in (
            ("1", "pixel"),
            (str(measured["patch"]), "feature (here a square of pixels)"),
        ):
            claims.append(
                Claim(
                    f"sensitivity analysis by ξ of each input {what} estimates its effect on the output, a form of "
                    f"explainability: {name}",
                    _figures(found[side], measured["copies"]),
                    verdict(found[side]),
                    f"{_comparison(found[side])} {RULE}",
                )
            )
    return claims


def verdict(found: Measured) -> Verdict:
    """Of one kind of map on one data set."""
    deletes = clearly_above(found["deleted"][RANDOM]["areas"], found["deleted"][XI]["areas"])
    inserts = clearly_above(found["inserted"][XI]["areas"], found["inserted"][RANDOM]["areas"])
    return judged(deletes and inserts and found["with itself"] >= ALIKE)


def _figures(found: Measured, copies: int) -> str:
    """The areas of each map, and what is known of ξ's."""
    areas = {
        way: ", ".join(f"{name} {np.mean(curve['areas']):.3f}" for name, curve in found[way].items())
        for way in ("deleted", "inserted")
    }
    return (
        f"mean probability of the true class while deleting (lower is better): {areas['deleted']}; while inserting "
        f"(higher is better): {areas['inserted']}; rank correlation of ξ with the gradient "
        f"{found['with gradient']:.2f}, with a second ξ map of {copies:,} other copies {found['with itself']:.2f}"
    )


def _comparison(found: Measured) -> str:
    """In words, whether ξ or the gradient is the better map."""
    xi, gradient = (found["deleted"][name]["areas"] for name in (XI, GRADIENT))
    if clearly_above(gradient, xi):
        return "In deletion, ξ is better than the gradient's map."
    if clearly_above(xi, gradient):
        return "In deletion, the gradient's map is better, at the price of one backward pass."
    return "In deletion, ξ and the gradient's map are not told apart."


EXPERIMENT = Experiment(
    name="sensitivity",
    title="ξ per pixel as an explanation",
    where="Remark 2",
    data="MNIST (a network of 784-128-64-10 units) and CIFAR-10 (a pretrained ResNet-20)",
    published=Settings(),
    settings=Settings(),
    quick=Settings(
        mnist_images=3,
        cifar_images=2,
        copies=64,
        steps=8,
        studied=1,
        copies_tried=(64, 128),
        noises_tried=(0.1, 1.0),
        samples=500,
        epochs=2,
        shown=1,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The remark has no figure and no figures: it is measured here whether ξ is an explanation. An image is perturbed by
Gaussian noise, and every pixel gets Chatterjee's ξ of its noise and the loss (`excise.sensitivity`); for *squares* all
pixels of a 4 × 4 square share one noise. The noise of a pixel is the same in all channels. The gradient's map is the
size of the loss's gradient with respect to the input, summed over channels (and averaged over squares). If a map tells
what the network looks at, the probability of the true class falls fast when pixels are replaced, the most important
first, by the training images' mean (*deletion*), and rises fast when they are put into that mean (*insertion*); both
are compared with a random order on the same images. Bands are one standard error over images.

Whether a map shows the network or its own noise is told by a second map of other perturbations: where the two are not
alike (rank correlation about 0), there is nothing to read in either. Of a weak influence, ξ is about half its share in
the loss's variance (0.55 for a Gaussian one). With 784 or 1,024 pixels perturbed at once that share is one in a
thousand, far below ξ's own noise of 0.6 / √copies: 0.02 for 1,000 copies.
""",
    size=(13.0, 7.0),
)
