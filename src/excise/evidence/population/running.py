"""A population of models, made or read piece by piece: a run that was stopped goes on, and several may share it."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

import excise
from excise._support import workers
from excise._support.progress import Bar
from excise.errors import InputError, NothingForgotten
from excise.evidence.attacks import margin
from excise.evidence.evaluation import Evaluator
from excise.evidence.population.pieces import GROUPS, Piece, made_once, read, write
from excise.task.hashing import described
from excise.task.task import Task
from excise.training.model_cache import content_key
from excise.training.retraining import SEEDS, Retrained, recipe, retrain, train_anew
from excise.training.several import is_seen, sign_in
from excise.unlearning.method import Method, settings_of
from excise.unlearning.unlearner import Unlearner

MOST_RETAINED, MOST_TEST = 1000, 2000  # samples whose margins are kept
PAUSE = 0.5  # seconds between looks at what other processes are making
RETRAINED = 500 * SEEDS  # added to seeds of retrained models: no audit or original has the same
CODE = ("_support", "baselines", "curvature", "privacy", "slices", "statistics", "task", "training", "unlearning")
"""Packages that an outcome depends on."""
Job = tuple[str, int, Path]
"""A piece to be made: whose it is, its number and its file."""
Pieces = dict[str, list[Piece]]
"""By ``"original"``, ``"retrained"`` and the names of methods, one piece for each model."""


@dataclass(frozen=True)
class Plan:
    """Which models there are to make, and on which samples they are looked at."""

    task: Task
    """Its test samples are those that methods may use."""
    ids: list[int]
    methods: Mapping[str, Method]
    models: int
    seed: int
    folder: Path
    evaluator: Evaluator
    test_hash: str
    """Of all test samples."""

    def pieces(self) -> Iterator[tuple[str, int, Path]]:
        """Every piece: whose it is, its number and its file."""
        for number in range(self.models):
            first, again = self._seeds(number)
            yield "original", number, self._file("original", first)
            yield "retrained", number, self._file("retrained", again)
            for name, method in self.methods.items():
                yield name, number, self._file(*self._identity(method), first, code_hash())

    def make(self, name: str, number: int) -> Piece:
        """Make a piece."""
        first, again = self._seeds(number)
        if name == "original":
            return self._original(first)
        return self._retrained(again) if name == "retrained" else self._unlearned(first, self.methods[name])

    def _seeds(self, number: int) -> tuple[int, int]:
        """Of an original and of a retrained model."""
        first = SEEDS * (self.seed + 1) + number
        return first, RETRAINED + first

    @property
    def samples(self) -> dict[str, int]:
        """How many there are in each group."""
        said = self.evaluator.predictions(self.task.model)
        return dict(zip(GROUPS, map(len, said.groups), strict=True))

    def _file(self, *parts: object) -> Path:
        looked_at = [self.evaluator.retained.tolist(), self.samples, self.seed, self.test_hash]
        key = content_key(self.task, sorted(self.ids), *parts, looked_at, recipe(self.task))
        if key is None:
            raise InputError(
                "train_set gives other values at each reading, so that no model of it can be kept; pass samples "
                "without augmentation, and keep the transforms for training (retrain=)."
            )
        return self.folder / f"piece-{key}.npz"

    def _identity(self, method: Method) -> list[object]:
        """What tells it from other methods, and what it is told by the task."""
        tensors = {name: value for name, value in getattr(method, "__dict__", {}).items() if isinstance(value, Tensor)}
        own = [described(getattr(type(method), name)) for name in ("prepare", "apply")]
        task = [self.task.convex, self.task.features, described(self.task.perturbation)]
        return [repr(settings_of(method)), described(tensors), own, task]

    def _original(self, seed: int) -> Piece:
        made = train_anew(self.task, seed=seed, cache=self.folder)
        return self._look(made.model, made.seconds)

    def _retrained(self, seed: int) -> Piece:
        made: Retrained = retrain(self.task, self.ids, seed=seed, cache=self.folder)
        return self._look(made.model, made.seconds)

    def _unlearned(self, seed: int, method: Method) -> Piece:
        model = train_anew(self.task, seed=seed, cache=self.folder).model
        began = time.perf_counter()
        unlearner = Unlearner(self.task.with_model(model), method, seed=seed).prepare()
        preparation = time.perf_counter() - began
        try:
            done = unlearner.forget(self.ids)
        except NothingForgotten:
            return self._look(model, time.perf_counter() - began - preparation, preparation, refused=1.0)
        return self._look(done.model, done.seconds, preparation)

    def _look(self, model: nn.Module, seconds: float, preparation: float = 0.0, refused: float = 0.0) -> Piece:
        said = self.evaluator.predictions(model)
        if not all(np.isfinite(one.outputs).all() for one in said.groups):
            raise InputError("a model of the population gives outputs that are not finite; train at a lower rate.")
        margins = {name: margin(one.outputs, one.targets) for name, one in zip(GROUPS, said.groups, strict=True)}
        accuracies = dict(zip(GROUPS, said.accuracies, strict=True))
        return Piece(margins, accuracies, seconds, preparation, refused)


def plan(task: Task, ids: list[int], methods: Mapping[str, Method], *, models: int, seed: int, folder: Path) -> Plan:
    """Split the test samples into those that methods may use and those that models are looked at on."""
    count = 0 if task.test_set is None else len(task.test_set)
    if count < 2:
        raise InputError("a population needs task.test_set: samples that no model was trained on, two or more.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    ours, theirs = order[: count // 2], order[count // 2 :][:MOST_TEST]
    evaluator = Evaluator(task, ids, held_out=theirs.sort().values, retained_samples=MOST_RETAINED, seed=seed)
    if not evaluator.predictions(task.model).has_classes:
        raise InputError("a population needs samples of one class each: margins of numbers or labels are not defined.")
    used = replace(task, test_set=Subset(task.test_set, ours.sort().values.tolist()))
    return Plan(used, ids, methods, models, seed, folder, evaluator, _hash_of_test_samples(task))


def _hash_of_test_samples(task: Task) -> str:
    """Of all of them in their order; those that differ at each reading are refused."""
    found = replace(task, train_set=task.test_set, test_set=None, plain_set=None, keys=None).fingerprint.ordered
    if found is None:
        raise InputError("test_set gives other values at each reading; pass samples without augmentation.")
    return found


def run(made: Plan, *, progress: bool = False) -> Pieces:
    """Make or read all pieces; those that another process is making are waited for."""
    jobs, samples = list(made.pieces()), made.samples
    found: dict[tuple[str, int], Piece] = {}
    with Bar(enabled=progress) as bar:
        bar.start("models", len(jobs))
        while len(found) < len(jobs):
            missing = [job for job in jobs if job[:2] not in found]
            originals = {number for name, number in found if name == "original"}
            there = by_workers(made, missing, samples) if workers.asked_for() else None
            for (name, number, _), piece in there or one_by_one(made, missing, samples, originals):
                found[name, number] = piece
                bar.advance(1)
            if len(found) == len(jobs) - len(missing):
                time.sleep(PAUSE)
    names = dict.fromkeys(name for name, *_ in jobs)
    return {name: [found[name, number] for number in range(made.models)] for name in names}


def one_by_one(
    made: Plan, jobs: Sequence[Job], samples: dict[str, int], originals: Collection[int]
) -> Iterator[tuple[Job, Piece]]:
    """Pieces that no other process is making; ``originals`` are the numbers of those that are there before."""
    there = set(originals)
    for job in jobs:
        name, number, file = job
        if name not in ("original", "retrained") and number not in there:
            continue  # else two processes would train the same one
        piece = made_once(file, samples, partial(made.make, name, number))
        if piece is not None:
            there |= {number} if name == "original" else set()
            yield job, piece


def by_workers(made: Plan, jobs: Sequence[Job], samples: dict[str, int]) -> Iterator[tuple[Job, Piece]]:
    """The same by the workers that joblib was told of: an original and what methods make of it together."""
    groups: dict[tuple[int, bool], list[Job]] = {}
    for name, number, file in jobs:
        piece = read(file, samples)
        if piece is not None:
            yield (name, number, file), piece
        else:
            groups.setdefault((number, name == "retrained"), []).append((name, number, file.absolute()))
    with sign_in(made.folder) as sign:
        shared = Shared(replace(made, folder=made.folder.absolute()), samples, sign)
        for done in workers.each(_make_group, shared, list(groups.values()), "the task, or a method,"):
            for job, piece in done.found:
                if not job[2].exists():
                    write(job[2], piece)
                yield job, piece


@dataclass(frozen=True)
class Shared:
    """What workers need."""

    plan: Plan
    samples: dict[str, int]
    sign: Path | None
    """By which they see whether the folder of pieces is theirs too."""


def _make_group(shared: Shared, jobs: list[Job]) -> list[tuple[Job, Piece]]:
    """Some pieces of one number, in a worker: kept in the folder, if it is there too, else in one of its own."""
    if is_seen(shared.sign):
        names, numbers = {name for name, *_ in jobs}, {number for _, number, _ in jobs}
        originals = set() if "original" in names else numbers  # what is not to be made is there
        return list(one_by_one(shared.plan, jobs, shared.samples, originals))
    with tempfile.TemporaryDirectory() as folder:
        plan = replace(shared.plan, folder=Path(folder))
        return [(job, plan.make(*job[:2])) for job in jobs]


@cache
def code_hash() -> str:
    """Of the code that outcomes of methods depend on, so that those of other code are not taken for its own."""
    digest, root = hashlib.sha256(), Path(excise.__file__).parent
    for file in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
