"""Figure re-ID and its appendix: a person's images are removed one by one from a network that finds people again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from excise.batchnorm import reestimate
from excise.drift import Drift
from excise.errors import InputError
from excise.forgotten import Forgotten
from excise.paper import paper_sigma
from excise.reproduce.experiment import Experiment, Measured
from excise.reproduce.people import Album, People, load_people
from excise.reproduce.plots import legend_below, tidy
from excise.reproduce.reid_claims import AT_ONCE, NOTES, OURS, RETRAINED, judge, literal
from excise.reproduce.removals import remove_one_by_one
from excise.reproduce.retrieval_models import Seen, Training, by_pixels, look, network, scores
from excise.reproduce.run import Run
from excise.task import Task
from excise.training import GradientTrace
from excise.unlearn import Unlearner
from excise.weights import portable_state

LOSS = nn.CrossEntropyLoss(reduction="none")
LOOKS = {OURS: "#0b6e4f", AT_ONCE: "#1f77b4", RETRAINED: "#7b4fa3"}
KINDS = {"mAP": "mAP", "rank-1": "rank-1", "confidence": "confidence of the head"}
REDS = ("#d1495b", "#e07a1f", "#8c1c2c")


@dataclass(frozen=True)
class Settings:
    """Those of appendix B."""

    dataset: str = "market1501"
    networks: tuple[str, ...] = ("resnet50", "mobilenet_v2")
    widths: tuple[float, ...] = (1.0, 1.0)
    """Of each network, as a multiple of its usual channels."""
    size: tuple[int, int] = (256, 128)
    trained: int = 30
    """People to train on; of ORL only."""
    shots: int = 6
    """Images of each to train on; of ORL only."""
    watched: int = 8
    """Training people who are sought too; of the official sets only."""
    removed_people: int = 2
    """How many people are removed, each from the model of all; each is a run."""
    epochs: tuple[int, ...] = (60, 60)
    learning_rate: float = 0.0003
    falls_after: float = 0.75
    batch_size: int = 32
    shift: int = 2
    weight_decay: float = 0.01
    copies: int = 1000
    epsilons: tuple[float, ...] = (0.1, 0.0005)
    delta: float = 0.01
    noise_samples: int = 12_936
    """The noise is that for as many training images as Market-1501 has."""
    drop: float = 0.05
    """Of the mean average precision on everyone else, for supported removals."""
    few_shots: int = 2
    """Images of each person in the smaller sets."""
    few_epochs: int = 60
    timed_width: float = 1.0
    timed_size: tuple[int, int] = (256, 128)
    timed_copies: int = 1000


@dataclass(frozen=True)
class Trained:
    """A trained network, and what its removals need."""

    task: Task
    trace: GradientTrace
    people: People
    settings: Settings
    seed: int

    def before(self) -> Seen:
        """What it makes of the queries."""
        return look(self.task.model, self.people)


def measure(run: Run[Settings]) -> Measured:
    """Retrieval over the removals for every network, few images a person, and the time of one removal."""
    settings = run.settings
    people = load_people(
        settings.dataset,
        run.data_dir,
        size=settings.size,
        trained=settings.trained,
        shots=settings.shots,
        watched=settings.watched,
        seed=run.seed,
    )
    networks = {name: _one_network(run, people, number) for number, name in enumerate(settings.networks)}
    few = replace(people, train=people.train.thinned(settings.few_shots))
    sigma = partial(paper_sigma, weight_decay=settings.weight_decay, delta=settings.delta)
    return {
        "images": len(people.train),
        "people": people.trained,
        "pixels mAP": round(by_pixels(people), 4),
        "drop": settings.drop,
        "epsilons": list(settings.epsilons),
        "noise": {
            str(samples): [sigma(samples=samples, epsilon=epsilon) for epsilon in settings.epsilons]
            for samples in (settings.noise_samples, len(people.train))
        },
        "networks": {name: one["measured"] for name, one in networks.items()},
        "few": _few(run, few),
        "time": run.step("ResNet-50 at full size", partial(time_of_removal, settings)),
        "pictures": networks[settings.networks[0]]["pictures"],
    }


# ---------------------------------------------------------------------------------------------------- removing


def _one_network(run: Run[Settings], people: People, number: int) -> dict[str, Any]:
    settings = run.settings
    name = settings.networks[number]
    training = _training(settings, settings.epochs[number])
    trained, start, began = _trained(run, f"{name}, training", people, number, training)
    persons = people.removable[: settings.removed_people]
    ids = [_order(people.train, person, run.seed) for person in persons]
    ways: dict[str, Callable[[Trained, int, list[int]], dict[str, Any]]] = {
        **{literal(epsilon): partial(_literally, epsilon=epsilon) for epsilon in settings.epsilons},
        OURS: _ours,
        AT_ONCE: _at_once,
        RETRAINED: partial(_retrained, start=start, training=training),
    }
    outcomes = {
        way: [
            run.step(f"{name}, person {position}, {way}", partial(remove, trained, person, rows))
            for position, (person, rows) in enumerate(zip(persons, ids, strict=True))
        ]
        for way, remove in ways.items()
    }
    shown = outcomes[literal(settings.epsilons[0])][0]["pictures"]
    return {
        "measured": {
            "begins with": began,
            "parameters": sum(weight.numel() for weight in start.model.parameters()),
            "ways": {way: [_without(one, "pictures") for one in found] for way, found in outcomes.items()},
        },
        "pictures": {
            "network": name,
            "images": shown["images"],
            "before": shown["before"],
            "after": {way: found[0]["pictures"]["after"] for way, found in outcomes.items()},
        },
    }


def _training(settings: Settings, epochs: int) -> Training:
    return Training(epochs, settings.learning_rate, settings.batch_size, settings.shift, settings.falls_after)


def _trained(
    run: Run[Settings], key: str, people: People, number: int, training: Training
) -> tuple[Trained, Task, str]:
    """A network trained on all training images, with its trace; the task before training; what it began with."""
    settings = run.settings
    model, began = network(
        settings.networks[number],
        run.data_dir / "weights",
        classes=people.trained,
        width=settings.widths[number],
        side=min(settings.size),
        seed=run.seed,
    )
    start = Task(model, LOSS, people.train, weight_decay=settings.weight_decay)

    def train() -> dict[str, Any]:
        fitted, trace = training(start, seed=run.seed, record=True)
        assert trace is not None
        return {"weights": portable_state(fitted), "trace": [list(trace.gradients), list(trace.parameters)]}

    state = run.tensors(key, train)
    fitted = copy.deepcopy(model)
    fitted.load_state_dict(state["weights"])
    gradients, parameters = (tuple(part) for part in state["trace"])
    trace = GradientTrace(gradients=gradients, parameters=parameters)
    return Trained(replace(start, model=fitted.eval()), trace, people, settings, run.seed), start, began


def _order(train: Album, person: int, seed: int) -> list[int]:
    rows: list[int] = np.random.default_rng([seed, person]).permutation(train.of(person)).tolist()
    return rows


def _literally(trained: Trained, person: int, ids: list[int], *, epsilon: float) -> dict[str, Any]:
    """The paper's method, with noise as for a set of the paper's size."""
    settings = trained.settings
    unlearner = Unlearner(
        trained.task,
        method="paper",
        trace=trained.trace,
        copies=settings.copies,
        seed=trained.seed,
        noise_seed=trained.seed,
        noise_samples=settings.noise_samples,
    )
    forget = partial(unlearner.forget, epsilon=epsilon, delta=settings.delta)
    return _one_by_one(trained, person, ids, forget)


def _ours(trained: Trained, person: int, ids: list[int]) -> dict[str, Any]:
    """Our step."""
    return _one_by_one(trained, person, ids, Unlearner(trained.task, seed=trained.seed).prepare().forget)


def _at_once(trained: Trained, person: int, ids: list[int]) -> dict[str, Any]:
    """All images of the person in one request, by drift."""
    unlearner = Unlearner(trained.task, refine=Drift.of_class(), seed=trained.seed).prepare()
    done = unlearner.forget(ids)
    return _once(trained, person, ids, done.model, done.seconds)


def _retrained(trained: Trained, person: int, ids: list[int], *, start: Task, training: Training) -> dict[str, Any]:
    """From the same beginning, without the person."""
    kept = np.setdiff1d(np.arange(len(trained.people.train)), ids)
    model, _ = training(start, seed=trained.seed, ids=kept)
    return _once(trained, person, ids, model)


def _one_by_one(
    trained: Trained, person: int, ids: list[int], forget: Callable[[list[int]], Forgotten]
) -> dict[str, Any]:
    before = last = trained.before()
    by_chance = math.log(trained.people.trained)  # a loss of retained images
    requests: list[Forgotten] = []

    def remove(sample: int) -> nn.Module:
        try:
            requests.append(forget([sample]))
        except InputError:  # gradients that are no longer finite, as noise on noise has ruined the model: it stays so
            if not requests or requests[-1].retain_loss[1] < by_chance:
                raise
        return requests[-1].model

    def score(model: nn.Module, _: Sequence[int]) -> dict[str, float]:
        nonlocal last
        last = look(model, trained.people)
        return scores(last, before, trained.people, person)

    return {
        **remove_one_by_one(trained.task.model, remove, ids, every=1, measure=score),
        "requests": len(requests),
        "slices": float(np.mean([len(request.slices) for request in requests])),
        "layers": float(np.mean([count_layers(request.slices) for request in requests])),
        "seconds": float(np.mean([request.seconds for request in requests])),
        "pictures": pictures(before, last, trained.people, person),
    }


def _once(
    trained: Trained, person: int, ids: list[int], model: nn.Module, seconds: float | None = None
) -> dict[str, Any]:
    before, after = trained.before(), look(model, trained.people)
    rows = [scores(seen, before, trained.people, person) for seen in (before, after)]
    return {
        "removed": [0, len(ids)],
        **{name: [row[name] for row in rows] for name in rows[0]},
        "seconds": seconds,
        "pictures": pictures(before, after, trained.people, person),
    }


def count_layers(slices: Sequence[str]) -> int:
    """In how many layers the named slices are.

    >>> count_layers(["layer1.0.conv1[3]", "layer1.0.conv1[5]", "linear[0]"])
    2
    """
    return len({name.rpartition("[")[0] for name in slices})


def pictures(before: Seen, after: Seen, people: People, person: int) -> dict[str, Any]:
    """A query of the person and one of another: the images, and their maps before and after, as bytes."""
    other = next(number for number in reversed(people.removable) if number != person)
    rows = [people.query.of(person)[0], people.query.of(other)[0]]
    return {
        "images": [_small(people.query.images[row]) for row in rows],
        "before": [_bytes(before.maps[row]) for row in rows],
        "after": [_bytes(after.maps[row]) for row in rows],
    }


def _small(image: Tensor) -> list[list[int]]:
    """In grey and of 64 pixels' height at the most."""
    grey = image.float().mean(0)[None, None]
    height, width = grey.shape[2:]
    if height > 64:
        grey = F.interpolate(grey, (64, max(1, round(64 * width / height))), mode="area")
    small: list[list[int]] = grey[0, 0].round().int().tolist()
    return small


def _bytes(activation: Any) -> list[list[int]]:
    """From 0 at its least to 255 at its largest, as torchreid draws it."""
    values = np.nan_to_num(np.asarray(activation))
    values = values - values.min()
    scaled: list[list[int]] = np.round(255 * values / max(float(values.max()), 1e-12)).astype(int).tolist()
    return scaled


def _without(outcome: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != name}


# ---------------------------------------------------------------------------------------------------- few images


def _few(run: Run[Settings], people: People) -> dict[str, Any]:
    """The first network trained on few images of each person, as the smaller sets have, and the paper's method on it.

    What it is compared with is the same network's removal of as many images where there are more.
    """
    settings = run.settings
    name, epsilon = settings.networks[0], settings.epsilons[0]
    training = _training(settings, settings.few_epochs)
    trained, _, _ = _trained(run, f"{name}, few images, training", people, 0, training)
    outcomes = [
        run.step(
            f"{name}, few images, person {position}, {literal(epsilon)}",
            partial(_literally, trained, person, _order(people.train, person, run.seed), epsilon=epsilon),
        )
        for position, person in enumerate(people.removable[: settings.removed_people])
    ]
    return {"network": name, "images": len(people.train), "ways": [_without(one, "pictures") for one in outcomes]}


# ---------------------------------------------------------------------------------------------------- time


def time_of_removal(settings: Settings) -> dict[str, float]:
    """Of one removal by the paper's method from a ResNet-50 of full size; its eight images are noise."""
    from excise.networks.resnet import resnet50

    generator = torch.Generator().manual_seed(0)
    images = torch.randn((8, 3, *settings.timed_size), generator=generator)
    data = TensorDataset(images, torch.arange(8))
    model = resnet50(0, classes=751, width=round(64 * settings.timed_width))
    task = Task(model, LOSS, data, weight_decay=settings.weight_decay)
    reestimate(task, model, None)
    fitted, trace = Training(2, settings.learning_rate, 4, 0, 1.0)(task, seed=0, record=True)
    task = replace(task, model=fitted)
    unlearner = Unlearner(task, method="paper", trace=trace, copies=settings.timed_copies, seed=0, noise_seed=0)
    done = unlearner.prepare().forget([0], epsilon=settings.epsilons[0], delta=settings.delta)
    return {
        "seconds": done.seconds,
        "copies": settings.timed_copies,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "threads": torch.get_num_threads(),
    }


# ---------------------------------------------------------------------------------------------------- drawing


def draw(measured: Measured, figure: Any) -> None:
    """Retrieval and confidence over the removals on the left, the paper's activation maps on the right."""
    left, right = figure.subfigures(1, 2, width_ratios=(1.35, 1))
    _draw_curves(measured, left)
    _draw_maps(measured["pictures"], right)


def _draw_curves(measured: Measured, figure: Any) -> None:
    names = list(measured["networks"])
    grid = figure.subplots(len(names), len(KINDS), squeeze=False, sharex=True, sharey=True)
    for row, name in zip(grid, names, strict=True):
        for axes, kind in zip(row, KINDS, strict=True):
            for position, (way, runs) in enumerate(measured["networks"][name]["ways"].items()):
                _draw_way(axes, way, runs, kind, position)
            tidy(axes, x="images removed", y=KINDS[kind], title=name)
            axes.set_ylim(-0.03, 1.03)
    grid[0, 0].plot([], [], color="0.4", label="everyone else (filled)")
    grid[0, 0].plot([], [], color="0.4", linestyle=":", label="the removed person (hollow)")
    legend_below(figure, grid[0, 0], 3)


def _draw_way(axes: Any, way: str, runs: Sequence[Measured], kind: str, position: int) -> None:
    """Everyone else as a line with a band from the least to the largest, the person dotted; marks for one request."""
    shade = LOOKS.get(way) or REDS[position % len(REDS)]
    for who, line in (("rest", "-"), ("person", ":")):
        steps, curves = together([(one["removed"], one[f"{who} {kind}"]) for one in runs])
        label = way if who == "rest" else None
        if way in (AT_ONCE, RETRAINED):
            mark, face = {AT_ONCE: "D", RETRAINED: "*"}[way], shade if who == "rest" else "none"
            ends = curves[:, -1]
            axes.plot(steps[-1:], [ends.mean()], mark, color=shade, markerfacecolor=face, markersize=8, label=label)
        else:
            width = 1.5 if way == OURS else 2.8  # lines that lie upon each other are both seen
            axes.plot(steps, curves.mean(0), line, color=shade, linewidth=width, label=label)
            if who == "rest":  # a person has few queries: bands of theirs would cover everything
                axes.fill_between(steps, curves.min(0), curves.max(0), color=shade, alpha=0.12, linewidth=0)


def together(curves: Sequence[tuple[Sequence[int], Sequence[float]]]) -> tuple[list[int], NDArray[np.float64]]:
    """Curves of several people, a row for each, for as many removals as all of them have.

    >>> steps, rows = together([([0, 1, 2], [1.0, 0.8, 0.6]), ([0, 1], [0.9, 0.7])])
    >>> steps, rows.tolist()
    ([0, 1], [[1.0, 0.8], [0.9, 0.7]])
    """
    shared = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    if len(shared) < 2:  # done at once, for people with unequal numbers of images: drawn at the least of these
        least = min(steps[-1] for steps, _ in curves)
        shared, curves = [0, least], [([0, least], [values[0], values[-1]]) for _, values in curves]
    tables = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    return shared, np.array([[table[step] for step in shared] for table in tables])


def _draw_maps(pictured: Measured, figure: Any) -> None:
    """Image, map and overlay of the removed person and of another, before and after each way."""
    rows = {"before": pictured["before"], **pictured["after"]}
    grid = figure.subplots(len(rows), 6, squeeze=False)
    figure.suptitle(f"{pictured['network']}: removed person (left), another (right)", fontsize=10)
    for (way, maps), cells in zip(rows.items(), grid, strict=True):
        for side, (image, activation) in enumerate(zip(pictured["images"], maps, strict=True)):
            pixels = np.asarray(image) / 255
            heat = _enlarged(activation, pixels.shape)
            trio = cells[3 * side : 3 * side + 3]
            trio[0].imshow(pixels, cmap="gray", vmin=0, vmax=1)
            trio[1].imshow(heat, cmap="jet", vmin=0, vmax=1)
            trio[2].imshow(pixels, cmap="gray", vmin=0, vmax=1)
            trio[2].imshow(heat, cmap="jet", vmin=0, vmax=1, alpha=0.5)
        cells[0].set_ylabel(way.replace(", ", ",\n"), fontsize=8, rotation=0, ha="right", va="center")
        for axes in cells:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)


def _enlarged(activation: Any, shape: tuple[int, ...]) -> Any:
    small = torch.tensor(activation).float()[None, None] / 255
    return F.interpolate(small, shape, mode="bilinear", align_corners=False)[0, 0].numpy()


EXPERIMENT = Experiment(
    name="reid",
    title="a person removed from a network that finds people again",
    where="Figure 8, section 7.4 and appendix B",
    data="ORL faces (40 people, 10 images each), a stand-in for Market-1501, MSMT17, PRID and GRID",
    published=Settings(),
    settings=Settings(
        dataset="orl",
        networks=("resnet20", "resnet50", "mobilenet_v2"),
        widths=(1.0, 0.25, 0.25),
        size=(56, 46),
        epochs=(16, 45, 45),
        learning_rate=0.001,
        batch_size=16,
        copies=250,
        few_epochs=30,
        timed_copies=250,
    ),
    quick=Settings(
        dataset="orl",
        networks=("resnet20",),
        widths=(1.0,),
        size=(16, 12),
        trained=5,
        shots=3,
        removed_people=1,
        epochs=(2,),
        learning_rate=0.001,
        batch_size=8,
        copies=16,
        few_epochs=2,
        timed_width=0.125,
        timed_size=(32, 32),
        timed_copies=16,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES,
    size=(16.0, 8.4),
)
