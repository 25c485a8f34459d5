"""Appendix D: does a K-FAC step of all weights change anything, and does L-CODEC unlearn where it does not?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.baselines.kfac_newton import kfac_newton
from excise.datasets.mnist import load_mnist
from excise.evidence.gap import Logits, divergence_gap
from excise.networks.small import mlp
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.fits import kept_fit, plain_sgd
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.removals import all_but, model_after
from excise.reproduce.parts.scores import flat
from excise.task import objective
from excise.task.task import Task
from excise.training.loop import Fitted
from excise.unlearning.drift import Drift
from excise.unlearning.method import Method
from excise.unlearning.paper import PaperStep
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

LOSS = nn.CrossEntropyLoss(reduction="none")
KFAC, PAPER, OURS, DRIFT, RETRAINED = "K-FAC", "paper", "ours", "ours, with drift", "retrained"
METHODS = (KFAC, PAPER, OURS, DRIFT)
SMALL, LARGE = "784-20-10", "784-128-64-10"
HELD_OUT = 2000  # validation images that temperatures are fitted on


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
    recipe = plain_sgd(settings)
    if network == SMALL:
        return recipe
    return recipe | {"epochs": settings.epochs_memorising, "momentum": 0.9, "schedule": "cosine"}


def _one_case(
    run: Run[Settings], data: Data, case: Case, trained: tuple[Task, Fitted], number: int
) -> dict[str, dict[str, Any]]:
    """The figures of every method, of the model before and of the retrained ones."""
    task, fitted = trained
    ids = _forgotten(run, task, case, number)
    kept = all_but(ids, len(task.train_set))
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
        PAPER: lambda: _forget(task, ids, seed, PaperStep(fitted.trace)),
        OURS: lambda: _forget(task, ids, seed, Step()),
        DRIFT: lambda: _forget(task, ids, seed, Drift()),
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


def _forget(task: Task, ids: list[int], seed: int, method: Method) -> nn.Module:
    return model_after(Unlearner(task, method, seed=seed, n_jobs=1), ids)


def _figures(
    data: Data, task: Task, ids: list[int], retrained: Sequence[nn.Module], model: nn.Module
) -> dict[str, Any]:
    """What a method did to the model."""
    said, original = _logits(data, ids, model), _logits(data, ids, task.model)
    gap = divergence_gap(said, original, [_logits(data, ids, one) for one in retrained], calibrated=True)
    before, after = (flat(one, torch.float32) for one in (task.model, model))
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
