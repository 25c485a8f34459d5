"""Appendix B: retraining with batch normalisation dips where the last batch of an epoch is a single sample."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import objective
from excise.batchnorm import reestimate
from excise.datasets.cifar import load_cifar, normalised
from excise.errors import InputError
from excise.networks.drawing import drawn
from excise.networks.resnet import FourStageResNet, ProjectedBlock
from excise.paper import paper_sigma
from excise.reproduce.experiment import Claim, Experiment, Measured, Verdict
from excise.reproduce.kept import kept_fit
from excise.reproduce.mnist_removals import PublishedRemovals, choose_by_lfoci
from excise.reproduce.plots import band, colour, tidy
from excise.reproduce.run import Run
from excise.slices import find_slices
from excise.task import Task, evaluating, trained_parameters
from excise.training import Fitted, batch_sizes, fit, own_randomness
from excise.unlearn import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
KEPT, JOINED, EVEN = "last batch kept", "lone sample joins (ours)", "even batches"
RETRAININGS = (KEPT, JOINED, EVEN)
OURS, LITERAL, QUIET = "ours", "paper", "paper, without its noise"
UNLEARNED = (OURS, LITERAL, QUIET)
ACCURACY, NORM = "validation accuracy", "residual gradient norm"
NEIGHBOURS = (1, 2, 8)  # removals after a dip: the last batch is full again, or nearly
LIVELY = 0.5  # momentum of running statistics at which the last batch counts most, to see whether they are the cause
HALF_A_POINT = 0.005
STANDING_OUT = 0.1  # share by which a norm must differ from its neighbours to be a spike


@dataclass(frozen=True)
class Settings:
    """The paper states none; ``published`` has those of its scripts for 1,000 images."""

    network: str = "ResNet-18"
    samples: int = 1000
    removals: int = 100
    offsets: tuple[int, ...] = tuple(range(-31, 33))
    """Which counts are retrained: so far from each at which one sample is left over."""
    runs: int = 3
    batch_size: int = 64
    epochs: int = 200
    learning_rate: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.1
    copies: int = 1000
    epsilon: float = 0.1
    delta: float = 0.01
    validated: int = 10_000


# ---------------------------------------------------------------------------------------------------------- networks


def small_network(seed: int, *, width: int = 16) -> nn.Sequential:
    """Three convolutions with batch normalisation, the last of 4 × 4 pixels, and a linear layer."""

    def make() -> nn.Sequential:
        layers: list[nn.Module] = []
        before = 3
        for after in (width, 2 * width, 4 * width):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))

    return drawn(make, seed)


def published_network(seed: int, *, width: int = 64) -> FourStageResNet:
    """The ResNet-18 of Torch Hub, made for ImageNet: of 32 × 32 pixels its last maps have one."""
    return drawn(lambda: FourStageResNet(ProjectedBlock, (2, 2, 2, 2), classes=10, width=width), seed)


NETWORKS = {"small": small_network, "ResNet-18": published_network}


def refusal() -> str:
    """What batch normalisation says to a single image whose maps have one pixel; empty if it says nothing."""
    network = published_network(0, width=8).train()
    try:
        network(torch.zeros(1, 3, 32, 32))
    except ValueError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------------------------------------------------- training


def plain_sizes(count: int, size: int) -> list[int]:
    """Sizes of the batches of an epoch as most loops have them: whole ones, and whatever is left.

    >>> plain_sizes(9, 4)
    [4, 4, 1]
    """
    return [min(size, count - low) for low in range(0, count, size)]


def even_sizes(count: int, size: int) -> list[int]:
    """As many batches, of sizes that differ by one at the most.

    >>> even_sizes(9, 4)
    [3, 3, 3]
    """
    return [len(part) for part in np.array_split(np.arange(count), math.ceil(count / size))]


def plain_fit(
    task: Task,
    ids: Tensor,
    sizes: Sequence[int],
    settings: Settings,
    *,
    seed: int,
    lone_first: bool = False,
    lone_steps: bool = True,
) -> nn.Module:
    """``fit``, but with batches of exactly these sizes; samples that they do not cover are left out of the epoch.

    Args:
        task: Model, data and objective.
        ids: The samples to train on.
        sizes: Of the batches of an epoch.
        settings: Epochs, learning rate and momentum.
        seed: Decides the order of the samples, the same as in ``fit``.
        lone_first: Whether the last batch comes first.
        lone_steps: Whether the weights move on a batch of one; if not, only the running statistics do.
    """
    model = copy.deepcopy(task.model).train()
    sizes = list(sizes)[::-1] if lone_first else list(sizes)
    weights = list(trained_parameters(model).values())
    optimizer = torch.optim.SGD(
        weights, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=task.weight_decay
    )
    steps = settings.epochs * len(sizes)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        with own_randomness(generator):
            order = ids[torch.randperm(len(ids), generator=generator)]
            for chosen in order[: sum(sizes)].split(sizes):
                loss = task.losses(model, task.batch(chosen)).mean()
                optimizer.zero_grad()
                loss.backward()
                if lone_steps or len(chosen) > 1:
                    optimizer.step()
                scheduler.step()
    return model.eval()


def our_fit(task: Task, ids: Tensor, settings: Settings, *, seed: int) -> nn.Module:
    """By the package's own training."""
    return fit(task, ids=ids, seed=seed, **_training(settings)).model


def _training(settings: Settings) -> dict[str, Any]:
    return {
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "lr": settings.learning_rate,
        "momentum": settings.momentum,
    }


def with_momentum(model: nn.Module, momentum: float) -> nn.Module:
    """A copy whose running statistics follow each batch by this share."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    return model


# --------------------------------------------------------------------------------------------------------- measuring


def dips(settings: Settings) -> list[int]:
    """The removal counts at which a last batch of one sample is left."""
    return [r for r in range(settings.removals + 1) if (settings.samples - r) % settings.batch_size == 1]


def counts(settings: Settings) -> list[int]:
    """The removal counts that are retrained.

    >>> counts(Settings(samples=1000, removals=50, offsets=(-1, 0, 1)))
    [0, 38, 39, 40]
    """
    found = {dip + offset for dip in dips(settings) for offset in settings.offsets}
    return sorted({0} | {count for count in found if 0 <= count <= settings.removals})


def measure(run: Run[Settings]) -> Measured:
    """Accuracy and gradient norm over the removals, retrained in three ways and unlearned, and what makes the dips."""
    settings = run.settings
    images, labels = load_cifar(run.data_dir / "cifar-10-batches-bin")
    test_images, test_labels = load_cifar(run.data_dir / "cifar-10-batches-bin", "test")
    held_out = slice(0, settings.validated)
    test = TensorDataset(normalised(test_images[held_out]), torch.tensor(test_labels[held_out]))
    runs = []
    for number in range(settings.runs):
        chosen = np.random.default_rng([run.seed, number]).permutation(len(images))[: settings.samples]
        train = TensorDataset(normalised(images[chosen]), torch.tensor(labels[chosen]))
        seed = run.seed * 1000 + number
        model = NETWORKS[settings.network](seed)
        runs.append(_one_run(run, number, Task(model, LOSS, train, test, weight_decay=settings.weight_decay), seed))
    measured: dict[str, Any] = {
        name: {series: [one[series][name] for one in runs] for series in (*RETRAININGS, *UNLEARNED)}
        for name in (ACCURACY, NORM)
    }
    return measured | {
        "removed": counts(settings),
        "last batch": [plain_sizes(settings.samples - r, settings.batch_size)[-1] for r in counts(settings)],
        "dips": dips(settings),
        "true norm": {series: [one[series]["true norm"] for one in runs] for series in RETRAININGS},
        "causes": {name: [one["causes"][name] for one in runs] for name in runs[0]["causes"]},
        "refusal": run.step("a network whose last maps have one pixel", refusal),
        "sigma": _sigma(settings),
        "batches": len(plain_sizes(settings.samples, settings.batch_size)),
    }


def _one_run(run: Run[Settings], number: int, task: Task, seed: int) -> dict[str, Any]:
    """One training set, from which the samples are removed in the order in which they are stored."""
    settings = run.settings
    outcome: dict[str, Any] = {series: {ACCURACY: [], NORM: [], "true norm": []} for series in RETRAININGS}
    for count in counts(settings):
        found = run.step(f"run {number}, {count} removed", partial(_retrained, task, count, settings, seed))
        for series, scores in found.items():
            for name, value in scores.items():
                outcome[series][name].append(value)
    joined = dict(zip(counts(settings), outcome[JOINED][ACCURACY], strict=True))
    causes = [
        run.step(f"run {number}, causes at {count}", partial(_causes, task, count, joined[count], settings, seed))
        for count in dips(settings)
    ]
    outcome["causes"] = {name: [one[name] for one in causes] for name in causes[0]}
    fitted = kept_fit(run, f"run {number}, training", task, seed=seed, recorder=True, **_training(settings))
    for series in UNLEARNED:
        key = f"run {number}, unlearned, {series}"
        outcome[series] = run.step(key, partial(_unlearned, run, series, task, fitted, seed))
    return outcome


def _retrained(task: Task, count: int, settings: Settings, seed: int) -> dict[str, dict[str, float | None]]:
    """All three ways at one count; where no sample is left over, ours is the plain one."""
    ids = torch.arange(count, settings.samples)
    plain = plain_sizes(len(ids), settings.batch_size)
    found = {KEPT: _scored(task, _or_none(partial(plain_fit, task, ids, plain, settings, seed=seed)), ids, plain)}
    joined = batch_sizes(len(ids), settings.batch_size)
    differs = joined != plain
    found[JOINED] = _scored(task, our_fit(task, ids, settings, seed=seed), ids, joined) if differs else found[KEPT]
    even = even_sizes(len(ids), settings.batch_size)
    found[EVEN] = _scored(task, plain_fit(task, ids, even, settings, seed=seed), ids, even)
    return found


def _or_none(train: Any) -> nn.Module | None:
    """The trained model; None where batch normalisation refuses a batch of one."""
    try:
        model: nn.Module = train()
    except ValueError:
        return None
    return model


def _scored(task: Task, model: nn.Module | None, ids: Tensor, sizes: Sequence[int]) -> dict[str, float | None]:
    if model is None:
        return {ACCURACY: None, NORM: None, "true norm": None}
    norm, true_norm = gradient_norms(task, model, ids, sizes)
    return {ACCURACY: accuracy(task, model), NORM: norm, "true norm": true_norm}


def accuracy(task: Task, model: nn.Module) -> float:
    """On the test set."""
    images, labels = task.test_set.tensors
    with torch.no_grad(), evaluating(model):
        right = torch.cat([model(batch).argmax(1) for batch in images.split(500)]) == labels
    return float(right.double().mean())


def gradient_norms(task: Task, model: nn.Module, ids: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    """The residual gradient norm as published, the mean over batches of the norm of each batch's, and the true one."""
    norms, total = [], None
    with evaluating(model):
        for batch in ids.split(list(sizes)):
            slopes = objective.gradient(task, model, batch)
            norms.append(objective.norm(slopes) / len(batch))
            total = slopes if total is None else {name: total[name] + slopes[name] for name in slopes}
    assert total is not None
    return float(np.mean(norms)), objective.norm(total) / len(ids)


def _causes(task: Task, count: int, joined: float, settings: Settings, seed: int) -> dict[str, float]:
    """What accuracy a batch of one costs against joining it, and what is left of that when one part is taken away."""
    ids = torch.arange(count, settings.samples)
    plain = plain_sizes(len(ids), settings.batch_size)
    lively = replace(task, model=with_momentum(task.model, LIVELY))

    def score(model: nn.Module | None) -> float:
        return math.nan if model is None else accuracy(task, model)

    def trained(of: Task = task, sizes: Sequence[int] = plain, **options: bool) -> nn.Module | None:
        return _or_none(lambda: plain_fit(of, ids, sizes, settings, seed=seed, **options))

    kept = trained()
    at_all = score(kept)
    if kept is not None:
        reestimate(task, kept, ids)
    return {
        "kept": joined - at_all,
        "kept, statistics taken anew": joined - score(kept),
        "kept, statistics only, no step": joined - score(trained(lone_steps=False)),
        "kept, but first in the epoch": joined - score(trained(lone_first=True)),
        f"kept, statistics of momentum {LIVELY:g}": score(our_fit(lively, ids, settings, seed=seed))
        - score(trained(lively)),
        "skipped": joined - score(trained(sizes=plain[:-1])),
    }


def _unlearned(run: Run[Settings], series: str, start: Task, fitted: Fitted, seed: int) -> dict[str, list[float]]:
    """Over the same removals, one after the other, without retraining."""
    settings = run.settings
    task = replace(start, model=fitted.model)
    forget = _ours(task, seed) if series == OURS else _published(task, fitted, settings, series, seed)
    wanted = counts(settings)
    found: dict[str, list[float]] = {ACCURACY: [], NORM: []}
    model, ruined = task.model, False
    with run.progress(series, settings.removals) as bar:
        for count in range(wanted[-1] + 1):
            if count and not ruined:
                try:
                    model = forget(count - 1)
                except InputError:  # noise upon noise: what the model says are no numbers any more
                    ruined = True
                bar.advance(1)
            if count in wanted:
                ids = torch.arange(count, settings.samples)
                found[ACCURACY].append(accuracy(task, model))
                sizes = batch_sizes(len(ids), settings.batch_size)
                found[NORM].append(gradient_norms(task, model, ids, sizes)[0])
    return found


def _ours(task: Task, seed: int) -> Callable[[int], nn.Module]:
    unlearner = Unlearner(task, batch_statistics="reestimate", seed=seed, n_jobs=1)
    return lambda sample: unlearner.forget([sample]).model


def _published(task: Task, fitted: Fitted, settings: Settings, series: str, seed: int) -> Callable[[int], nn.Module]:
    assert fitted.trace is not None
    choose = choose_by_lfoci(task, find_slices(task.model), copies=settings.copies, seed=seed)
    sigma = _sigma(settings) if series == LITERAL else 0.0
    return PublishedRemovals(task, fitted.trace, choose, sigma=sigma, seed=seed).forget


def _sigma(settings: Settings) -> float:
    return paper_sigma(
        samples=settings.samples,
        weight_decay=settings.weight_decay,
        epsilon=settings.epsilon,
        delta=settings.delta,
    )


# ------------------------------------------------------------------------------------------------- plot and verdicts


@dataclass(frozen=True)
class Depth:
    """By how much a score lies below what it is a few removals later, over runs and dips."""

    mean: float
    error: float
    """Its standard error."""

    @property
    def is_dip(self) -> bool:
        """Whether it is more than half a point, and more than chance explains: twice its standard error."""
        return self.mean > max(HALF_A_POINT, 2 * self.error)

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f} points"


def depth(values: Any) -> Depth:
    """Of single differences; those that could not be made are left out."""
    flat = np.asarray(values, dtype=float).ravel()
    flat = flat[~np.isnan(flat)]
    error = float(flat.std(ddof=1) / math.sqrt(len(flat))) if len(flat) > 1 else math.inf
    return Depth(float(flat.mean()) if len(flat) else math.nan, error)


def differences(measured: Measured, name: str, series: str, offset: int = 0, *, relative: bool = False) -> Any:
    """Neighbours less the score so far from each dip, runs × dips; relative to the neighbours if asked."""
    removed = list(measured["removed"])
    runs = np.asarray(measured[name][series], dtype=float)
    columns = []
    for dip in measured["dips"]:
        near = [removed.index(dip + k) for k in NEIGHBOURS if dip + k in removed]
        if near and dip + offset in removed:
            usual = runs[:, near].mean(axis=1)
            below = usual - runs[:, removed.index(dip + offset)]
            columns.append(below / usual if relative else below)
    return np.asarray(columns).T


def draw(measured: Measured, figure: Any) -> None:
    """Accuracy and gradient norm over the removals, and the depth of the dip by what is done to the lone sample."""
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.25, 1))
    looks: dict[str, dict[str, Any]] = {
        KEPT: {"color": colour("paper"), "marker": "."},
        JOINED: {"color": colour("retrained"), "marker": ".", "linestyle": "--"},
        EVEN: {"color": colour("L-FOCI"), "marker": "."},
        OURS: {"color": colour("ours")},
        LITERAL: {"color": colour("random")},
        QUIET: {"color": colour("random"), "linestyle": ":"},
    }
    for axes, name in ((left, ACCURACY), (middle, NORM)):
        for series, look in looks.items():
            label = f"{'retrained' if series in RETRAININGS else 'unlearned'}, {series}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of counts at which nothing could be trained
                values = np.asarray(measured[name][series], dtype=float)
                if series in (LITERAL, QUIET):  # they leave the picture, and their band would cover it
                    values = values.mean(axis=0, keepdims=True)
                band(axes, measured["removed"], values, label, **look)
        for dip in measured["dips"]:
            axes.axvline(dip, color="0.85", linewidth=5, zorder=0)
        tidy(axes, x="removals (grey: one sample left over)", y=name)
        _zoom(axes, measured, name)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncol=3, fontsize=8, frameon=False)
    found = {name: depth(values) for name, values in measured["causes"].items()}
    places = np.arange(len(found))[::-1]
    right.barh(
        places,
        [100 * one.mean for one in found.values()],
        xerr=[100 * one.error if math.isfinite(one.error) else 0 for one in found.values()],
        color="0.65",
        height=0.6,
    )
    right.axvline(0, color="0.3", linewidth=0.8)
    right.set_yticks(places, [name.replace(", ", ",\n", 1) for name in found], fontsize=7)
    tidy(right, x="points below joining it", y="", title="what the lone sample costs")


def _zoom(axes: Any, measured: Measured, name: str) -> None:
    """To where the dips can be seen; where the published step is then out of the picture, a word says so."""
    shown = np.concatenate([np.ravel(measured[name][series]) for series in (*RETRAININGS, OURS)]).astype(float)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    room = 0.08 * max(high - low, 0.01)
    axes.set_ylim(low - 2 * room, high + room)
    ends = {series: np.asarray(measured[name][series], dtype=float)[:, -1] for series in (LITERAL, QUIET)}
    away = [f"{series}: {values.mean():.3g}" for series, values in ends.items() if not low <= values.mean() <= high]
    if away:
        words = "out of the picture at the end:\n" + "; ".join(away)
        axes.text(0.99, 0.01, words, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)


def judge(measured: Measured) -> list[Claim]:
    """Each claim by a rule that its row states."""
    return [_dips(measured), _congruent(measured), _spikes(measured), _skipping(measured), _care(measured)]


RULE = "A dip: deeper than half a point and than twice its standard error (over runs and counts)."


def _dips(measured: Measured) -> Claim:
    found = depth(differences(measured, ACCURACY, KEPT))
    causes = {name: depth(values) for name, values in measured["causes"].items()}
    parts = "; ".join(f"{name} {found}" for name, found in causes.items())
    return Claim(
        '"Dips occur at removal counts where the modulus equals 1"',
        f"retrained with the last batch of one kept, accuracy is {found} below that {_neighbours()} removals later. "
        f"Below what joining that sample to the batch before gives, at the same count: {parts}",
        _verdict(found.is_dip),
        f"{RULE} {_cause(causes)} With the ResNet-18 of Torch Hub, whose last maps have one pixel, training does not "
        f"dip but stop: {measured['refusal'] or 'no, it does not'}.",
    )


def _cause(causes: dict[str, Depth]) -> str:
    """Which part of a batch of one does the harm: that without which at most half of the dip is left."""
    if not causes["kept"].is_dip:
        return "No cause is to be found where there is no dip."
    anew, no_step = (
        causes[name].mean / causes["kept"].mean
        for name in ("kept, statistics taken anew", "kept, statistics only, no step")
    )
    parts = {
        "what it leaves in the running statistics": anew,
        "the step on a single image, normalised by itself": no_step,
    }
    guilty = [part for part, left in parts.items() if left <= 0.5]
    cause = " and ".join(guilty) if guilty else "no single part of it"
    return (
        f"The harm is done by {cause}: with the statistics taken anew {anew:.0%} of the dip is left, without the step "
        f"{no_step:.0%}."
    )


def _congruent(measured: Measured) -> Claim:
    other = {1 - k: depth(differences(measured, ACCURACY, KEPT, k)) for k in (-1, -3, -7)}
    also = [size for size, found in other.items() if found.is_dip]
    parts = "; ".join(f"{size} samples {found}" for size, found in other.items())
    return Claim(
        '"The spikes are exactly congruent with points [...] corresponding to a final batch size of 1"',
        f"accuracy, where the last batch has more than one sample: {parts} below the same neighbours",
        _verdict(not also),
        f"Confirmed if none of these dips. {RULE}"
        + (
            " Every last batch takes a step as long as a whole one's, and of few samples it is a bad one."
            if also
            else ""
        ),
    )


def _spikes(measured: Measured) -> Claim:
    def stands_out(name: str, series: str) -> float:
        return -depth(differences(measured, name, series, relative=True)).mean

    published, true, ours = stands_out(NORM, KEPT), stands_out("true norm", KEPT), stands_out(NORM, JOINED)
    return Claim(
        "there are spikes at these counts (of the residual gradient norm, the figure's other panel)",
        f"at these counts, against {_neighbours()} removals later: {published:+.0%} as published, {true:+.0%} for the "
        f"true norm, {ours:+.0%} with the sample joined",
        _verdict(abs(published) > STANDING_OUT),
        f"Confirmed if it differs by more than {STANDING_OUT:.0%}. The published norm is the mean over batches of each "
        "batch's, in which a lone sample counts as much as 64.",
    )


def _skipping(measured: Measured) -> Claim:
    found = depth(measured["causes"]["skipped"])
    batches = measured["batches"]
    return Claim(
        'the batch can be skipped, but "this can still lead to odd behavior"',
        f"skipping the batch of one costs {found} against joining it",
        _verdict(found.is_dip),
        f"{RULE} The published code divides the norms of the batches that it uses by the number of all, so that with "
        f"skipping its norm falls by 1/{batches} there: odd, but bookkeeping.",
    )


def _care(measured: Measured) -> Claim:
    kept, joined, even = (depth(differences(measured, ACCURACY, series)) for series in RETRAININGS)
    two, even_two = (depth(differences(measured, ACCURACY, series, -1)) for series in (JOINED, EVEN))
    unlearned = depth(differences(measured, ACCURACY, OURS))
    last = {series: float(np.nanmean([runs[-1] for runs in measured[ACCURACY][series]])) for series in UNLEARNED}
    first = float(np.nanmean([runs[0] for runs in measured[ACCURACY][OURS]]))
    retrained = float(np.nanmean([runs[-1] for runs in measured[ACCURACY][JOINED]]))
    after = ", ".join(f"{series} {accuracy:.1%}" for series, accuracy in last.items())
    return Claim(
        '"care must be taken when attempting to unlearn from batchnorm models"',
        f"where one sample is left over: kept {kept}, joined (ours) {joined}, even batches {even}, our unlearning "
        f"{unlearned} below {_neighbours()} removals later; where two are: ours {two}, even batches {even_two}. "
        f"Accuracy {first:.1%} before, after all removals unlearned by {after}, retrained {retrained:.1%}",
        _verdict(kept.is_dip and not even.is_dip and not even_two.is_dip),
        f"Confirmed if the plain loop dips and even batches do not, where one sample is left over nor where two are. "
        f"{RULE} {_two_left(two)} The published noise has a standard deviation of {measured['sigma']:.2g} here.",
    )


def _two_left(two: Depth) -> str:
    return (
        "Our training looks after a single sample only: a last batch of two dips in it as in the plain loop."
        if two.is_dip
        else "A last batch of two does not dip in our training."
    )


def _neighbours() -> str:
    *most, last = map(str, NEIGHBOURS)
    return f"{', '.join(most)} and {last}"


def _verdict(holds: bool) -> Verdict:
    return "confirmed" if holds else "not confirmed"


HERE = Settings(
    network="small",
    removals=111,
    offsets=(-15, -7, -3, -1, 0, 1, 2, 8),
    epochs=10,
    learning_rate=0.1,
    weight_decay=0.01,
    copies=250,
    validated=2000,
)

EXPERIMENT = Experiment(
    name="batchnorm",
    title="retraining with batch normalisation where one sample is left over",
    where="appendix B, Retraining Results on CIFAR",
    data="1,000 images of CIFAR-10 and 2,000 of its test images",
    published=Settings(),
    settings=HERE,
    quick=replace(
        HERE,
        samples=130,
        removals=3,
        offsets=(-1, 0, 1, 2),
        runs=1,
        epochs=2,
        weight_decay=0.1,
        copies=64,
        validated=200,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
*Last batch kept* is the plain loop: whole batches, and whatever is left as a last one. *Ours* is `excise.fit`, in
which a lone sample joins the batch before; at all other counts it is the plain loop. *Even batches* are as many, of
sizes that differ by one at the most. All start from the same weights and shuffle by the same seed, and each count
removes the first so many samples. *Unlearned* goes over the same removals one sample at a time without retraining: ours
with the batch statistics re-estimated on what remains, the published step with its noise, and the same step without it.

The paper gives no settings for this figure; those beside ours are of its scripts for 1,000 images. They train the
ResNet-18 of Torch Hub, which is made for ImageNet: 32 × 32 pixels become a single one, so that batch normalisation has
one value per channel and refuses a batch of one image. The scripts' starting points (38 removals of 1,000 and 30 of
20,000, with batches of 64) are where the next removal leaves one sample over, and their loop has lines to skip such a
batch. Here a small network keeps 4 × 4 pixels, so that it can be trained on one image, and trains within two seconds;
its learning rate was chosen on other seeds than the one reported.
""",
    size=(14.0, 4.6),
)
