"""Appendix D: does a K-FAC step of all weights change anything, and does L-CODEC unlearn where it does not?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import objective
from excise.baselines.kfac_newton import kfac_newton
from excise.datasets.mnist import load_mnist
from excise.gap import Gap, Logits, divergence_gap
from excise.networks.small import mlp
from excise.reproduce.experiment import Claim, Experiment, Measured, judged
from excise.reproduce.kept import kept_fit
from excise.reproduce.plots import colour, tidy
from excise.reproduce.run import Run
from excise.task import Task
from excise.training import Fitted
from excise.unlearn import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
KFAC, PAPER, OURS, DRIFT, RETRAINED = "K-FAC", "paper", "ours", "ours, with drift", "retrained"
METHODS = (KFAC, PAPER, OURS, DRIFT)
SMALL, LARGE = "784-20-10", "784-128-64-10"
UNSEEN = 0.1  # points of validation accuracy: a change that is not observable
HARM = 1.0  # points of validation accuracy: a change that is damage
HALF = 0.5  # of the gap to retraining: what forgetting must at least close
NEARLY_ALL = 0.9
HELD_OUT = 2000  # validation images that temperatures are fitted on
ROOM = 2.0  # times the distance of two retrainings: how far the original must be for something to be forgotten


@dataclass(frozen=True)
class Settings:
    """Of this experiment: the text names none; sizes and counts are the defaults of the published script."""

    samples: int = 60_000
    random: int = 1000
    """Random samples to forget."""
    hardest: int = 100
    """Samples of largest loss to forget, in the network that memorises."""
    runs: int = 3
    retrainings: int = 2
    learning_rate: float = 0.1
    batch_size: int = 256
    epochs: int = 10
    weight_decay: float = 0.01
    epochs_memorising: int = 15
    weight_decay_memorising: float = 5e-4


@dataclass(frozen=True)
class Case:
    """A network and which of its training samples it is to forget."""

    network: str
    which: Literal["random", "hardest"]

    @property
    def name(self) -> str:
        """As on the plot."""
        return f"{self.network}, {self.which}"


CASES = (Case(SMALL, "random"), Case(LARGE, "random"), Case(LARGE, "hardest"))


@dataclass(frozen=True)
class Data:
    """Training and validation images, in memory."""

    train: TensorDataset
    images: Tensor
    labels: Tensor


def measure(run: Run[Settings]) -> Measured:
    """For each case, run and method: accuracy, loss of the forgotten samples, change of the weights, gap."""
    data = _data(run)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {case.name: {} for case in CASES}
    for number in range(run.settings.runs):
        trained = {network: _train(run, data, network, number) for network in (SMALL, LARGE)}
        for case in CASES:
            for method, figures in _one_case(run, data, case, trained[case.network], number).items():
                found[case.name].setdefault(method, []).append(figures)
    return {"cases": found}


def _data(run: Run[Settings]) -> Data:
    images, labels = load_mnist(run.data_dir / "mnist")
    chosen = np.random.default_rng([run.seed, 0]).permutation(len(images))[: run.settings.samples]
    validation = load_mnist(run.data_dir / "mnist", "test")
    return Data(
        TensorDataset(torch.tensor(images[chosen]), torch.tensor(labels[chosen])),
        torch.tensor(validation[0]),
        torch.tensor(validation[1]),
    )


def _train(run: Run[Settings], data: Data, network: str, number: int) -> tuple[Task, Fitted]:
    start = _start(run.settings, data, network, _seed(run, number, 0))
    key = f"run {number}, {network}, training"
    fitted = kept_fit(run, key, start, recorder=True, seed=_seed(run, number, 0), **_recipe(run.settings, network))
    return replace(start, model=fitted.model), fitted


def _seed(run: Run[Settings], number: int, training: int) -> int:
    """Of one of the trainings of a run."""
    return int(np.random.default_rng([run.seed, 1, number, training]).integers(2**31))


def _start(settings: Settings, data: Data, network: str, seed: int) -> Task:
    decay = settings.weight_decay if network == SMALL else settings.weight_decay_memorising
    sizes = [int(size) for size in network.split("-")]
    return Task(mlp(seed, sizes), LOSS, data.train, weight_decay=decay)


def _recipe(settings: Settings, network: str) -> dict[str, Any]:
    """As in appendix B for MNIST; the network that is to memorise is trained until it does."""
    common = {"lr": settings.learning_rate, "batch_size": settings.batch_size}
    if network == SMALL:
        return {**common, "epochs": settings.epochs, "momentum": 0.0, "schedule": "constant"}
    return {**common, "epochs": settings.epochs_memorising, "momentum": 0.9, "schedule": "cosine"}


def _one_case(
    run: Run[Settings], data: Data, case: Case, trained: tuple[Task, Fitted], number: int
) -> dict[str, dict[str, Any]]:
    """The figures of every method, of the model before and of the retrained ones."""
    task, fitted = trained
    ids = _forgotten(run, task, case, number)
    kept = np.setdiff1d(np.arange(len(task.train_set)), ids)
    retrained = []
    for count in range(1, run.settings.retrainings + 1):
        seed = _seed(run, number, count)
        start = _start(run.settings, data, case.network, seed)
        key = f"run {number}, {case.name}, retraining {count}"
        again = kept_fit(run, key, start, ids=kept, seed=seed, **_recipe(run.settings, case.network))
        retrained.append(again.model)
    compare = partial(_figures, data, task, ids, retrained)
    seed = run.seed + number
    ways: dict[str, Callable[[], nn.Module]] = {
        "before": lambda: task.model,
        KFAC: lambda: kfac_newton(task, task.model, ids, seed=seed, samples=None),
        PAPER: lambda: _forget(task, ids, seed, method="paper", trace=fitted.trace),
        OURS: lambda: _forget(task, ids, seed),
        DRIFT: lambda: _forget(task, ids, seed, refine="drift"),
    }
    found = {name: run.step(f"run {number}, {case.name}, {name}", _then(compare, way)) for name, way in ways.items()}
    found[RETRAINED] = run.step(
        f"run {number}, {case.name}, retrained", partial(_of_retrained, data, task, ids, retrained)
    )
    return found


def _forgotten(run: Run[Settings], task: Task, case: Case, number: int) -> list[int]:
    if case.which == "random":
        rng = np.random.default_rng([run.seed, 2, number])
        return [int(sample) for sample in rng.permutation(len(task.train_set))[: run.settings.random]]
    losses = objective.losses_on(task, task.model, range(len(task.train_set)), batch_size=1000)
    hardest: list[int] = losses.argsort(descending=True)[: run.settings.hardest].tolist()
    return hardest


def _then(compare: Callable[[nn.Module], dict[str, Any]], way: Callable[[], nn.Module]) -> Callable[[], Any]:
    return lambda: compare(way())


def _forget(task: Task, ids: list[int], seed: int, **options: Any) -> nn.Module:
    return Unlearner(task, seed=seed, n_jobs=1, **options).forget(ids).model


def _figures(
    data: Data, task: Task, ids: list[int], retrained: Sequence[nn.Module], model: nn.Module
) -> dict[str, Any]:
    """What a method did to the model."""
    said, original = _logits(data, ids, model), _logits(data, ids, task.model)
    gap = divergence_gap(said, original, [_logits(data, ids, one) for one in retrained], calibrated=True)
    before, after = _flat(task.model), _flat(model)
    return _answers(data, ids, model) | {
        "changed_answers": float(np.mean(said.held_out.argmax(1) != original.held_out.argmax(1))),
        "weight_change": float((after - before).norm() / before.norm()),
        "gap": [gap.model, gap.original, gap.floor],
    }


def _of_retrained(data: Data, task: Task, ids: list[int], retrained: Sequence[nn.Module]) -> dict[str, Any]:
    """The means over the retrained models; their gap is the floor."""
    each = [_figures(data, task, ids, retrained, model) for model in retrained]
    _, original, floor = each[0]["gap"]
    means: dict[str, Any] = {name: float(np.mean([one[name] for one in each])) for name in each[0] if name != "gap"}
    return means | {"gap": [floor, original, floor]}


def _answers(data: Data, ids: list[int], model: nn.Module) -> dict[str, float]:
    """Validation accuracy in percent, and loss and accuracy on the forgotten samples."""
    images, labels = data.train[torch.tensor(ids)]
    with torch.no_grad():
        outputs = model(images)
        right = (model(data.images).argmax(1) == data.labels).double().mean()
        return {
            "validation": 100 * float(right),
            "forget_loss": float(LOSS(outputs, labels).mean()),
            "forget_accuracy": 100 * float((outputs.argmax(1) == labels).double().mean()),
        }


def _logits(data: Data, ids: list[int], model: nn.Module) -> Logits:
    with torch.no_grad():
        images = data.train[torch.tensor(ids)][0]
        return Logits(model(images).double().numpy(), model(data.images[:HELD_OUT]).double().numpy())


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def pooled_gap(rows: Sequence[dict[str, Any]]) -> Gap:
    """The gap over all runs: sums before they are divided."""
    return sum((Gap(*row["gap"]) for row in rows), Gap(0.0, 0.0, 0.0))


def has_room(gap: Gap) -> bool:
    """Whether the original is farther from the retrained models than these are from each other, by a margin."""
    return gap.original > ROOM * gap.floor


def draw(measured: Measured, figure: Any) -> None:
    """Three panels over the cases: validation accuracy, loss of the forgotten samples, gap to retraining."""
    panels = figure.subplots(1, 3)
    cases = measured["cases"]
    for at, rows in enumerate(cases.values()):
        before = _column(rows["before"], "validation")
        for place, method in enumerate((*METHODS, RETRAINED)):
            x = at + (place - 2) * 0.15
            _dots(panels[0], x, _column(rows[method], "validation") - before, method, label=at == 0)
            _dots(panels[1], x, _column(rows[method], "forget_loss"), method)
        mean = float(_column(rows["before"], "forget_loss").mean())
        panels[1].plot([at - 0.4, at + 0.4], [mean, mean], color="0.5", linestyle=":", label=None if at else "before")
        if has_room(pooled_gap(rows["before"])):
            for place, method in enumerate(METHODS):
                shares = np.array([Gap(*row["gap"]).share for row in rows[method]])
                _dots(panels[2], at + (place - 2) * 0.15, shares, method, centre=pooled_gap(rows[method]).share)
        else:
            panels[2].text(at, 0.03, "nothing\nto forget", ha="center", va="bottom", fontsize=8, color="0.45")
    panels[0].axhline(0, color="0.7", linewidth=1, zorder=0)
    panels[0].set_yscale("symlog", linthresh=1)
    panels[1].set_yscale("log")
    for value, style in ((0.0, "-"), (1.0, ":")):
        panels[2].axhline(value, color="0.7", linestyle=style, linewidth=1, zorder=0)
    panels[2].set_yscale("symlog", linthresh=1)
    tidy(panels[0], x="", y="change of validation accuracy, points", title="validation")
    tidy(panels[1], x="", y="mean loss", title="the forgotten samples")
    tidy(panels[2], x="", y="nKLc: 0 as retrained, 1 nothing done", title="gap to retraining")
    for axes in panels:
        axes.set_xticks(range(len(cases)), [name.replace(", ", "\n") for name in cases], fontsize=8)
        axes.set_xlim(-0.5, len(cases) - 0.5)
        axes.margins(y=0.1)
    handles, labels = panels[0].get_legend_handles_labels()
    dotted = panels[1].get_legend_handles_labels()
    figure.legend(
        handles + dotted[0], labels + dotted[1], loc="outside lower center", ncols=6, fontsize=8, frameon=False
    )


def _dots(
    axes: Any, x: float, values: NDArray[np.float64], method: str, *, label: bool = False, centre: float | None = None
) -> None:
    """A dot for each run, and a bar at their mean."""
    paint = "#3a8fa3" if method == DRIFT else colour(method)
    axes.plot(np.full(len(values), x), values, "o", color=paint, markersize=3.5, alpha=0.6)
    middle = float(values.mean()) if centre is None else centre
    axes.plot([x], [middle], "_", color=paint, markersize=13, markeredgewidth=2.2, label=method if label else None)


def _column(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in rows], dtype=float)


def judge(measured: Measured) -> list[Claim]:
    """By the change of validation accuracy and the share of the gap to retraining that is left."""
    cases = measured["cases"]
    small = cases[CASES[0].name]
    roomy = {name: rows for name, rows in cases.items() if has_room(pooled_gap(rows["before"]))}
    unseen = bool((np.abs(_moved(small, KFAC)) < UNSEEN).all())
    left = {method: {name: pooled_gap(rows[method]).share for name, rows in roomy.items()} for method in METHODS}
    forgets = {method: bool(roomy) and max(left[method].values()) <= HALF for method in METHODS}
    harm = min(float(_moved(rows, PAPER).mean()) for rows in cases.values())
    cannot = "in no network is there something to forget" if not roomy else ""
    return [
        Claim(
            'Appendix D: K-FAC unlearning of an MLP has no "observable updates ... based on validation metrics"',
            f"validation accuracy moves by {_points(_moved(small, KFAC))} points on the published network, the weights "
            f"by {100 * float(_column(small[KFAC], 'weight_change').mean()):.2f} %; "
            + "; ".join(f"on {name} by {_points(_moved(cases[name], KFAC))}" for name in list(cases)[1:]),
            judged(unseen),
            "It says little: validation metrics tell damage, not forgetting. Retraining itself moves them by "
            f"{_points(_moved(small, RETRAINED))}, that of another random start included. (Confirmed would be: less "
            f"than {UNSEEN:g} points in every run, on the published network.)",
        ),
        Claim(
            "so that K-FAC does not unlearn, and its update step would have to be re-imagined",
            cannot
            or f"of the gap to retraining K-FAC leaves {_shares(left[KFAC])}; loss of the forgotten samples: "
            f"{_losses(roomy, KFAC)}",
            "out of reach" if cannot else judged(min(left[KFAC].values()) >= NEARLY_ALL),
            f"Asked where the original is farther than {ROOM:g} times the floor from retraining. (Confirmed would be: "
            f"K-FAC leaves {NEARLY_ALL:g} of the gap or more in each.) On the published network the original's "
            f"{_room(small)}.{_ahead(left)}",
        ),
        Claim(
            'whereas "the exact same model ... can unlearn the same set of data-points" by L-CODEC',
            f"the published step moves validation accuracy by {_points(_moved(small, PAPER))} points on the published "
            "network; "
            + "; ".join(f"on {name} by {_points(_moved(cases[name], PAPER))}" for name in list(cases)[1:])
            + (f"; of the gap it leaves {_shares(left[PAPER])}" if roomy else ""),
            "out of reach" if cannot else judged(forgets[PAPER] and harm > -HARM),
            "Its curvature has rank two: in all other directions the sample's gradient is divided by λ alone, so that "
            "the step is longer than with the true curvature; that this is what does the damage was not tested here. "
            + (f"Ours leaves {_shares(left[OURS])}, with drift {_shares(left[DRIFT])}. " if roomy else "")
            + f"(Confirmed would be: at most {HALF:g} of the gap left, and no more than {HARM:g} point of accuracy "
            "lost anywhere.)",
        ),
    ]


def _moved(rows: dict[str, Any], method: str) -> NDArray[np.float64]:
    """By how many points validation accuracy changed, in each run."""
    return _column(rows[method], "validation") - _column(rows["before"], "validation")


def _points(values: NDArray[np.float64]) -> str:
    return f"{values.mean():+.2f} ({values.min():+.2f} to {values.max():+.2f})"


def _shares(left: dict[str, float]) -> str:
    return ", ".join(
        f"{share:.2f} ({name})" if abs(share) < 100 else f"{share:.0f} ({name})" for name, share in left.items()
    )


def _ahead(left: dict[str, dict[str, float]]) -> str:
    """Where K-FAC of all weights is better than our own step, the page says so."""
    names = [name for name, share in left[KFAC].items() if abs(share) < abs(left[OURS][name])]
    return f" K-FAC is nearer to retraining than our default step on {' and on '.join(names)}." if names else ""


def _losses(cases: dict[str, Any], method: str) -> str:
    def mean(rows: Any, of: str) -> float:
        return float(_column(rows[of], "forget_loss").mean())

    return "; ".join(
        f"{mean(rows, 'before'):.2f} before, {mean(rows, method):.2f} after, {mean(rows, RETRAINED):.2f} retrained "
        f"({name})"
        for name, rows in cases.items()
    )


def _room(rows: dict[str, Any]) -> str:
    gap = pooled_gap(rows["before"])
    return f"divergence from retrained ones is {gap.original / gap.floor:.2f} times theirs from each other"


EXPERIMENT = Experiment(
    name="kfac",
    title="K-FAC against L-CODEC",
    where="Appendix D",
    data="MNIST, 60,000 images, two multilayer perceptrons",
    published=Settings(),
    settings=Settings(random=100),
    quick=Settings(samples=600, random=4, hardest=4, runs=1, epochs=2, epochs_memorising=3),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
**What is compared.** *K-FAC* is one step w + (K + λI)⁻¹ Σ∇ℓ / n of all weights, with K the Kronecker-factored
Gauss-Newton matrix of the retained samples and λ the weight decay; like the published script it has no selection, no
guard and no noise. Unlike it, all samples go in one request (the script removes one after the other and makes K anew
each time), biases belong to it, and its output factors come from 5,000 drawn pairs of sample and class. *Paper* is
`method="paper"`: joint L-FOCI over 1,000 perturbed copies and the rank-two curvature, sample after sample. Its noise is
left out, since the script's K-FAC has none either, and so is the script's rule to undo a removal that costs 5 points of
accuracy. *Ours* is `Unlearner(task)`, per-layer L-FOCI with a kept K-FAC curvature of our own, *with drift* is
`refine="drift"`, one pass over the retained samples. All forget the same samples of the same model.

**Networks.** The appendix names neither network nor training. 784-20-10 is the network of the published script (there
without biases), trained for the script's 10 epochs with appendix B's SGD for MNIST (learning rate 0.1, batches of 256,
weight decay 0.01). In a trial with other seeds the 100 hardest samples had a mean loss of 7.11 when it was trained on
them and of 7.12 when it was not: there is next to nothing to forget, and no method can show on it that it forgets. So
784-128-64-10 is there too, with weight decay 0.0005, momentum and a falling learning rate. It was chosen because it
learns hard samples by heart (2.4 against 6.4 in the same trial), so it is a case in which forgetting can be seen, not
one of the paper's. Two kinds of samples are forgotten: random ones, and the hardest (of largest loss under the trained
model). The thresholds of the verdicts are ours, set after those trials and before any run of this command.

**Gap.** nKLc: the divergence from retrained models on the forgotten samples, at temperatures fitted on 2,000 of the
validation images, less that of retrained models from each other, as a share of the same for the original; 0 is as good
as another retraining, 1 nothing done, above 1 worse than nothing. It is pooled over runs (bars on the plot; dots are
single runs), and not given where the original is within twice the distance of retrained models. Validation is MNIST's
test part.
""",
    size=(11.0, 4.2),
)
