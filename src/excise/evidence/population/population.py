"""Populations: every method on many originals, against as many retrained models, under the strongest attack known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excise._support.checks import whole
from excise.errors import InputError
from excise.evidence.population.deviation import deviation
from excise.evidence.population.epsilon_score import epsilon_score
from excise.evidence.population.klom import klom
from excise.evidence.population.likelihood_ratio import likelihood_ratio
from excise.evidence.population.margins import Floats
from excise.evidence.population.pieces import GROUPS, Piece
from excise.evidence.population.running import Pieces, plan, run
from excise.task.ids import Ids, positions, require_some_left
from excise.task.requests import parse_request
from excise.task.task import Task
from excise.training.retraining import KEPT_IN
from excise.unlearning.method import Method, method_named, settings_of

FEWEST = 6  # models a side: halves of them make the floor, and the attack leaves one of three out
ENOUGH = 20  # models a side, below which differences of some hundredths of an AUC are chance
SPLITS = 20  # into halves, over which the floor is averaged
LARGEST_SEED = 10**12
NOTHING = "nothing done"


@dataclass(frozen=True)
class Measured:
    """How far a population of models is from retrained ones."""

    name: str
    auc: float
    """U-LiRA on the forgotten samples; 0.5 where they can't be told from retraining."""
    true_positives: float
    false_positives: float
    """Of the attacker who says "unlearned" where that is likelier."""
    klom: dict[str, float]
    """KLoM, 95th percentile, of forgotten, retained and test samples."""
    score: float
    """Of the NeurIPS 2023 competition, before its adjustment by accuracies; 1 is best."""
    z: dict[str, float]
    """Mean |z| of forgotten, retained and test samples."""
    accuracies: dict[str, float]
    seconds: float
    """Of a request, median: some may have been made while the machine had other work, or was stopped."""
    preparation: float
    refused: float
    """Share of the models of which the method forgot nothing, and said so."""


@dataclass(frozen=True)
class Population:
    """The outcome for one request."""

    request: str
    ids: tuple[int, ...]
    models: int
    """Originals, and as many retrained."""
    rows: tuple[Measured, ...]
    """Nothing done first, then the methods."""
    floor: Measured
    """Halves of the retrained models against each other: what chance and their number alone give."""
    settings: dict[str, Any]
    seed: int

    @property
    def is_enough(self) -> bool:
        """Whether there are enough models for differences between methods to mean something."""
        return self.models >= ENOUGH

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain values, for JSON."""
        record = asdict(self)
        for row, one in zip(record["rows"], self.rows, strict=True):
            left = self.share_left(one)
            row["share_left"] = None if math.isnan(left) else left  # JSON has no NaN
        return record | {"is_enough": self.is_enough}

    def share_left(self, row: Measured) -> float:
        """Of |z| on the forgotten samples, beyond the floor; NaN where doing nothing is not twice the floor."""
        most = self.rows[0].z["forget"]
        if most < 2 * self.floor.z["forget"]:
            return float("nan")
        return (row.z["forget"] - self.floor.z["forget"]) / (most - self.floor.z["forget"])


def population(
    task: Task,
    forget: Ids | str,
    methods: Sequence[str] | Mapping[str, Method | str] = ("step",),
    *,
    models: int = 40,
    seed: int = 0,
    cache: str | Path = KEPT_IN,
    progress: bool = False,
) -> Population:
    """Run every method on many originals and compare them with as many retrained models.

    Each method gets one half of ``task.test_set``, and models are looked at on the other. Models and outcomes are kept
    in the folder ``cache`` by their content, so that a run goes on where it was stopped, and several processes that
    are given the same arguments share the work.

    Args:
        task: Its ``retrain`` makes originals and retrained models alike, each with a seed of its own.
        forget: Positions, or words such as ``"random:1%"``; what is chosen by a model is chosen by the task's.
        methods: Names, or methods under names of your own.
        models: How many originals, and how many retrained models. KLoM means little below 100 of them, U-LiRA below 20.
        seed: Decides the seeds of all models, and which samples they are looked at on.
        cache: Folder for models and outcomes.
        progress: Whether to show a bar.
    """
    if whole(models, "models") < FEWEST:
        raise InputError(f"models must be {FEWEST} or more, not {models}: fewer have no distribution to compare.")
    if whole(seed, "seed", 0) > LARGEST_SEED:
        raise InputError(f"seed must be {LARGEST_SEED} or less, not {seed}: those of all models follow from it.")
    chosen = parse_request(forget, task, seed=seed).ids if isinstance(forget, str) else forget
    ids: list[int] = positions(chosen, len(task.train_set)).tolist()
    require_some_left(ids, len(task.train_set), "forget")
    made = _named(methods)
    work = plan(task, ids, made, models=models, seed=seed, folder=Path(cache).expanduser())
    return measured(
        run(work, progress=progress),
        request=forget if isinstance(forget, str) else f"{len(ids)} samples",
        ids=ids,
        settings={name: settings_of(method) for name, method in made.items()},
        seed=seed,
    )


def measured(found: Pieces, *, request: str, ids: Sequence[int], settings: dict[str, Any], seed: int) -> Population:
    """The figures of pieces that were made."""
    retrained = found["retrained"]
    rows = [_measure(NOTHING, found["original"], retrained)]
    rows += [_measure(name, pieces, retrained) for name, pieces in found.items() if name in settings]
    return Population(request, tuple(ids), len(retrained), tuple(rows), _floor(retrained, seed), settings, seed)


def _named(methods: Sequence[str] | Mapping[str, Method | str]) -> dict[str, Method]:
    if isinstance(methods, str):
        raise InputError(f"methods must be a list of names or a mapping, not the text {methods!r}; pass [{methods!r}].")
    pairs = methods.items() if isinstance(methods, Mapping) else [(name, name) for name in methods]
    made = {name: method_named(method) for name, method in pairs}
    for taken in ("original", "retrained", NOTHING):
        if taken in made:
            raise InputError(f"methods has {taken!r}, a name that the table has already; choose another.")
    return made


def _stacked(pieces: Sequence[Piece], group: str) -> Floats:
    return np.stack([piece.margins[group] for piece in pieces])


def _measure(name: str, ours: Sequence[Piece], retrained: Sequence[Piece]) -> Measured:
    seen = {group: (_stacked(ours, group), _stacked(retrained, group)) for group in GROUPS}
    attack = likelihood_ratio(*seen["forget"])
    if name == NOTHING:
        seconds = preparation = 0.0
    else:
        seconds, preparation = _median(ours, lambda one: one.seconds), _median(ours, lambda one: one.preparation)
    return Measured(
        name=name,
        auc=attack.auc,
        true_positives=attack.true_positives,
        false_positives=attack.false_positives,
        klom={group: klom(*seen[group]) for group in GROUPS},
        score=epsilon_score(*seen["forget"]).score,
        z={group: deviation(*seen[group]) for group in GROUPS},
        accuracies=_accuracies(ours),
        seconds=seconds,
        preparation=preparation,
        refused=_mean(ours, lambda one: one.refused),
    )


def _mean(pieces: Sequence[Piece], of: Callable[[Piece], float]) -> float:
    return float(np.mean([of(piece) for piece in pieces]))


def _median(pieces: Sequence[Piece], of: Callable[[Piece], float]) -> float:
    return float(np.median([of(piece) for piece in pieces]))


def _accuracies(pieces: Sequence[Piece]) -> dict[str, float]:
    return _mean_of_groups([piece.accuracies for piece in pieces])


def _mean_of_groups(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {group: float(np.mean([one[group] for one in figures])) for group in GROUPS}


def _floor(retrained: Sequence[Piece], seed: int) -> Measured:
    """The mean over random halves; accuracies and seconds are those of all retrained models.

    Halves are farther apart than as many models as there are would be, for |z| by the root of how many fewer they are.
    """
    rng, half = np.random.default_rng(seed), len(retrained) // 2
    splits = [rng.permutation(len(retrained)) for _ in range(SPLITS)]
    rows = [
        _measure("floor", [retrained[i] for i in one[:half]], [retrained[i] for i in one[half : 2 * half]])
        for one in splits
    ]

    def mean(of: Callable[[Measured], float]) -> float:
        return float(np.mean([of(row) for row in rows]))

    of_halves = _mean_of_groups([row.z for row in rows])
    return Measured(
        name="retrained",
        auc=mean(lambda row: row.auc),
        true_positives=mean(lambda row: row.true_positives),
        false_positives=mean(lambda row: row.false_positives),
        klom=_mean_of_groups([row.klom for row in rows]),
        score=mean(lambda row: row.score),
        z={group: z * math.sqrt(half / len(retrained)) for group, z in of_halves.items()},
        accuracies=_accuracies(retrained),
        seconds=_median(retrained, lambda one: one.seconds),
        preparation=0.0,
        refused=0.0,
    )
