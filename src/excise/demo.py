"""The demo: a network forgets digits with wrong labels, and is held against networks that never saw them."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Grid
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise.evidence.auditing import Audit, audit
from excise.evidence.evaluation import Evaluator
from excise.evidence.gap import divergence_gap
from excise.evidence.text import show
from excise.report.page import write_report
from excise.report.samples import sample_views, sensitivity_maps
from excise.task.ids import all_but
from excise.task.task import Task
from excise.training.loop import Fitted, fit
from excise.unlearning.auto import Auto
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.method import Method
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

TRAINED = 1300  # of the 1,797 digits; the rest is held out
WRONG = 12  # of these have a wrong label
EPOCHS, LR = 150, 0.2  # long enough to learn the wrong labels by heart
WALK = 30  # epochs of the network that the docs walk through, which every command trains anew
RETRAININGS = 3
SHOWN = 5  # slices
MAPPED = 4  # samples whose sensitivity is shown


@dataclass(frozen=True)
class Case:
    """An untrained network with its data, and the samples that will have to go."""

    task: Task
    ids: tuple[int, ...]
    """The training digits with a wrong label."""

    @property
    def pictures(self) -> Task:
        """The same task with the digits as pictures, to be shown."""
        images, labels = self.task.train_set.tensors
        return replace(self.task, train_set=TensorDataset(images.reshape(-1, 1, 8, 8), labels))

    @cached_property
    def others(self) -> Tensor:
        """Ids of all other training digits."""
        return all_but(self.ids, len(self.task.train_set))

    @cached_property
    def evaluator(self) -> Evaluator:
        """Asks networks about the forgotten digits (with their wrong labels), the retained and the held-out ones."""
        return Evaluator(self.task, self.ids)


@dataclass(frozen=True)
class Row:
    """A model's figures; for several models, their means."""

    name: str
    forgotten: float
    """Accuracy on the forgotten digits, as labelled in the request: how many wrong labels it gives back."""
    retained: float
    held_out: float
    gap: float
    """nKLc: 0 as good as another retraining, 1 nothing forgotten."""
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What the demo measured."""

    done: Forgotten
    """The request as the default method carried it out,"""
    stepped: Forgotten
    """and as a step on L-FOCI's slices did."""
    audit: Audit
    """Of the network after the default method."""
    models: tuple[nn.Module, nn.Module, nn.Module]
    """The original, after the default method, and one of the retrained."""
    slices: int
    """How many the network has."""
    original: Row
    step: Row
    default: Row
    retrained: Row

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return self.original, self.step, self.default, self.retrained

    def reasons(self) -> str:
        """Which slices the step changed, and why."""
        scores = {name: self.stepped.scores.get(name, 0.0) for name in self.stepped.slices}
        best = sorted(scores, key=lambda name: -scores[name])[:SHOWN]
        return (
            f"The step changed {len(scores)} of {self.slices} slices (the weights of one unit each), chosen because "
            f"their activations tell the {len(self.done.ids)} digits' losses. The highest scores (T, summed over the "
            f"digits): {', '.join(f'{name} {scores[name]:.2f}' for name in best)}. "
            f"The default changed all slices: {self.done.shortened}."
        )

    def grid(self) -> Grid:
        """The table."""
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column("accuracy on")
        for heading in ("forgotten\n(wrong labels)", "retained", "held-out", "gap nKLc to\nretraining", "seconds"):
            grid.add_column(heading, justify="right")
        for row in self.rows:
            accuracies = (f"{accuracy:.1%}" for accuracy in (row.forgotten, row.retained, row.held_out))
            grid.add_row(row.name, *accuracies, f"{row.gap:.2f}", f"{row.seconds:.2f}")
        return grid

    def meaning(self) -> str:
        """What happened, in words."""
        learned = "has learned them by heart" if self.original.forgotten > 0.5 else "hardly learned them"
        return (
            f"The original gives {self._recalled(self.original)} of the {len(self.done.ids)} wrong labels back: it "
            f"{learned}. Networks that never saw them give back {self._recalled(self.retrained)}. "
            f"{self._judged('The step', self.step)} {self._judged('The default', self.default)} The way is that from "
            "gap 1, nothing forgotten, to gap 0: what the network says about the forgotten digits is as near to what "
            "retrained ones say as these are to each other."
        )

    def _recalled(self, row: Row) -> str:
        return f"{row.forgotten * len(self.done.ids):.1f}".removesuffix(".0")

    def _judged(self, name: str, row: Row) -> str:
        if row.gap <= 0:
            way = "is as near to retraining as another retraining"
        elif row.gap >= 1:
            way = "is no nearer to retraining than the original"
        else:
            way = f"goes {1 - row.gap:.0%} of the way to retraining"
        points = round(100 * (row.held_out - self.retrained.held_out), 1)
        level = f"{abs(points)} points {'above' if points > 0 else 'below'}" if points else "equal to"
        return (
            f"{name} leaves {self._recalled(row)} and {way}, in {row.seconds / self.retrained.seconds:.0%} of the "
            f"time; held-out accuracy is {level} retraining's."
        )


def run(console: Console, folder: Path) -> None:
    """Train, forget, retrain, print how they compare, and write the proof into a folder."""
    case = make_case()
    console.print(
        f"A small network learns {len(case.task.train_set):,} real handwritten digits, {len(case.ids)} of them with a "
        "wrong label. Then it is asked to forget these, as if it had never seen them:\n"
        f"ids {', '.join(map(str, case.ids))}\n",
        highlight=False,
    )
    with _one_thread():
        outcome = measure(case, progress=sys.stderr.isatty())
        files = write_proof(case, outcome, folder)
    for part in (outcome.reasons(), "", outcome.grid(), "", "The audit of the default:"):
        console.print(part, highlight=False, markup=False)
    show(outcome.audit, console)
    for part in ("", f"Wrote {' and '.join(file.name for file in files)}.", "", outcome.meaning()):
        console.print(part, highlight=False, markup=False)


def make_case(seed: int = 0) -> Case:
    """scikit-learn's digits; the first are for training, and some of these get a wrong label."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(TRAINED, WRONG, replace=False))
    labels[ids] = (labels[ids] + rng.integers(1, 10, WRONG)) % 10
    data = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    task = Task(
        _network(seed),
        nn.CrossEntropyLoss(reduction="none"),
        TensorDataset(*(part[:TRAINED] for part in data)),
        TensorDataset(*(part[TRAINED:] for part in data)),
        weight_decay=2e-4,
    )
    return Case(task, tuple(ids.tolist()))


def customers() -> Task:
    """The demo's network, trained, with its digits as if each ten were a customer's: customer-0 to customer-129.

    It is what ``docs/ledger.md`` walks through.
    """
    task = make_case().task
    with _one_thread():
        trained = task.with_model(fit(task, epochs=WALK, lr=LR).model)
    return replace(trained, keys=[f"customer-{place // 10}" for place in range(TRAINED)])


def measure(case: Case, *, progress: bool = False) -> Outcome:
    """Train on all digits, forget in both ways, retrain on the others."""
    original = fit(case.task, epochs=EPOCHS, lr=LR, progress=progress)
    trained = replace(case.task, model=original.model)
    first = Unlearner(trained, "step", n_jobs=1, progress=progress)
    first.stability(case.ids, seeds=[0])  # what is compiled on first use is compiled now, before the clock runs
    step, default = (_forget(trained, case.ids, method) for method in (Step(), Auto()))
    retrained = [_retrain(case, seed, progress=progress) for seed in range(1, RETRAININGS + 1)]
    audited = audit(
        trained,
        original.model,
        default,
        case.ids,
        retrained=[fitted.model for fitted in retrained],
        retraining_seconds=float(np.mean([fitted.seconds for fitted in retrained])),
        progress=progress,
    )
    before, *never_saw = (
        case.evaluator.predictions(model).logits for model in (original.model, *(fitted.model for fitted in retrained))
    )

    def row(name: str, model: nn.Module, seconds: float) -> Row:
        said = case.evaluator.predictions(model)
        gap = divergence_gap(said.logits, before, never_saw, calibrated=True)
        return Row(name, *said.accuracies, gap.share, seconds)

    return Outcome(
        done=default,
        stepped=step,
        audit=audited,
        models=(original.model, default.model, retrained[0].model),
        slices=len(first.slices),
        original=row("original", original.model, original.seconds),
        step=row("excise step", step.model, step.seconds),
        default=row("excise, default", default.model, default.seconds),
        retrained=_mean_row(case, retrained),
    )


def write_proof(case: Case, outcome: Outcome, folder: Path) -> tuple[Path, Path]:
    """The report for people and the record for machines; a demo may show its samples."""
    page, record = folder / "excise-report.html", folder / "excise-report.json"
    maps = sensitivity_maps(case.task, *outcome.models[:2], case.ids[:MAPPED], seed=0, retrained=outcome.models[2])
    settings = {"training": f"{EPOCHS} epochs of SGD, learning rate {LR}"}
    write_report(outcome.audit, page, samples=sample_views(case.pictures, case.ids), maps=maps, settings=settings)
    outcome.audit.save(record)
    return page, record


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for everything: the times compare, and threads of so small a network would only wait for another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _network(seed: int) -> nn.Sequential:
    """Two hidden layers, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        layers = {
            "first": nn.Linear(64, 64),
            "relu1": nn.ReLU(),
            "second": nn.Linear(64, 32),
            "relu2": nn.ReLU(),
            "output": nn.Linear(32, 10),
        }
        return nn.Sequential(OrderedDict(layers))


def _forget(task: Task, ids: Sequence[int], method: Method) -> Forgotten:
    """The request carried out, with the seconds of all preparation."""
    begin = time.perf_counter()
    done = Unlearner(task, method, n_jobs=1).forget(ids)
    return replace(done, seconds=time.perf_counter() - begin)


def _retrain(case: Case, seed: int, *, progress: bool) -> Fitted:
    fresh = replace(case.task, model=_network(seed))
    return fit(fresh, ids=case.others, epochs=EPOCHS, lr=LR, seed=seed, progress=progress)


def _mean_row(case: Case, retrained: Sequence[Fitted]) -> Row:
    """Their gap is 0 by definition: their distance to each other is where its scale begins."""
    forgotten, retained, held_out = np.mean(
        [case.evaluator.predictions(fitted.model).accuracies for fitted in retrained], axis=0
    ).tolist()
    seconds = float(np.mean([fitted.seconds for fitted in retrained]))
    return Row(f"retrained (mean of {len(retrained)})", forgotten, retained, held_out, 0.0, seconds)
