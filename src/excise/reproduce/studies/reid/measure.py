"""Figure re-ID and its appendix: a person's images are removed one by one from a network that finds people again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from excise.errors import InputError, NothingForgotten
from excise.privacy.gaussian import paper_sigma
from excise.privacy.mechanism import Privacy
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import with_weights
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.people import Album, People, load_people
from excise.reproduce.parts.removals import all_but, model_after, remove_one_by_one
from excise.reproduce.parts.retrieval_models import Seen, Training, by_pixels, look, network, scores
from excise.task.task import Task
from excise.task.weights import portable_state
from excise.training.batchnorm import reestimate
from excise.training.trace import GradientTrace
from excise.unlearning.drift import Drift
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.paper import PaperStep
from excise.unlearning.selection import Joint
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
OURS, AT_ONCE, RETRAINED = "ours", "ours, at once", "retrained"


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


def literal(epsilon: float) -> str:
    """What the paper's method is called in tables and legends.

    >>> literal(0.0005)
    'paper, ε = 0.0005'
    """
    return f"paper, ε = {epsilon:g}"


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
    gradients, parameters = (tuple(part) for part in state["trace"])
    trace = GradientTrace(gradients=gradients, parameters=parameters)
    task = replace(start, model=with_weights(model, state["weights"]))
    return Trained(task, trace, people, settings, run.seed), start, began


def _order(train: Album, person: int, seed: int) -> list[int]:
    rows: list[int] = np.random.default_rng([seed, person]).permutation(train.of(person)).tolist()
    return rows


def _literally(trained: Trained, person: int, ids: list[int], *, epsilon: float) -> dict[str, Any]:
    """The paper's method, with noise as for a set of the paper's size."""
    settings = trained.settings
    step = PaperStep(trained.trace, Joint(copies=settings.copies), noise_samples=settings.noise_samples)
    unlearner = Unlearner(
        trained.task, step, privacy=Privacy(noise_seed=trained.seed, repeatable=True), seed=trained.seed
    )
    forget = partial(unlearner.forget, epsilon=epsilon, delta=settings.delta)
    return _one_by_one(trained, person, ids, forget)


def _ours(trained: Trained, person: int, ids: list[int]) -> dict[str, Any]:
    """Our step."""
    return _one_by_one(trained, person, ids, Unlearner(trained.task, "step", seed=trained.seed).prepare().forget)


def _at_once(trained: Trained, person: int, ids: list[int]) -> dict[str, Any]:
    """All images of the person in one request, by drift."""
    unlearner = Unlearner(trained.task, Drift.of_class(), seed=trained.seed).prepare()
    began = time.perf_counter()
    model = model_after(unlearner, ids)
    return _once(trained, person, ids, model, time.perf_counter() - began)


def _retrained(trained: Trained, person: int, ids: list[int], *, start: Task, training: Training) -> dict[str, Any]:
    """From the same beginning, without the person."""
    kept = all_but(ids, len(trained.people.train))
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
        except NothingForgotten:  # the guard allowed nothing, so that the model stays as it is
            pass
        except InputError:  # gradients that are no longer finite, as noise on noise has ruined the model: it stays so
            if not requests or requests[-1].retain_loss[1] < by_chance:
                raise
        return requests[-1].model if requests else trained.task.model

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
    step = PaperStep(trace, Joint(copies=settings.timed_copies))
    unlearner = Unlearner(task, step, privacy=Privacy(noise_seed=0, repeatable=True), seed=0)
    done = unlearner.prepare().forget([0], epsilon=settings.epsilons[0], delta=settings.delta)
    return {
        "seconds": done.seconds,
        "copies": settings.timed_copies,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "threads": torch.get_num_threads(),
    }
