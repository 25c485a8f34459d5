"""Which method forgets best? All of them on the same request, tuned alike, beside the noise floor of retraining.

Every method is tuned over its own short list of settings on another request of the same kind and on one half of the
held-out samples; what is reported is taken on the requests asked for and on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from excise.answers import Answers, answers
from excise.baselines import GRIDS, METHODS
from excise.errors import InputError
from excise.gap import Gap, Logits, average_gap, divergence_gap, margin_gap, tug_of_war
from excise.inputs import choice, whole
from excise.progress import Stages
from excise.requests import Request, parse_request
from excise.retraining import KEPT_IN, kept, retrain
from excise.targets import are_classes, targets_of
from excise.task import Task
from excise.verdict import is_measurable

MOST_RETAINED = 10_000
PRACTICE = 10**6  # seed of the request that methods are tuned on, far from those reported
TUNING_RETRAININGS = 2
FREE, PRICE = 0.005, 20.0  # of accuracy that tuning lets a method lose, and what the rest costs in units of the gap


@dataclass(frozen=True)
class Score:
    """How a model did on one request."""

    gaps: dict[str, Gap]
    """nKL, nKLc (temperatures fitted) and z (margins)."""
    figures: dict[str, float]
    """UA, RA, TA, MIA, Avg. Gap and ToW."""
    seconds: float
    share_of_retraining: float


@dataclass(frozen=True)
class Row:
    """A method over all seeds."""

    method: str
    settings: dict[str, Any]
    scores: tuple[Score, ...]
    failed: str = ""
    """Why there are none."""

    def gap(self, name: str) -> tuple[float, float]:
        """Pooled over the seeds before it is divided, and its standard deviation from seed to seed.

        The deviation is that of a ratio, of what each seed leaves beyond the pooled share: shares of single seeds mean
        little where the original was near the floor.
        """
        gaps = [score.gaps[name] for score in self.scores]
        pooled = sum(gaps[1:], gaps[0])
        way = float(np.mean([gap.original - gap.floor for gap in gaps]))
        rest = [(gap.model - gap.floor - pooled.share * (gap.original - gap.floor)) / way for gap in gaps]
        return pooled.share, _deviation(rest)

    def figure(self, name: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        values = [score.figures[name] for score in self.scores]
        return float(np.mean(values)), _deviation(values)

    @property
    def share_of_retraining(self) -> float:
        """Mean cost, with preparation."""
        return float(np.mean([score.share_of_retraining for score in self.scores]))


@dataclass(frozen=True)
class Comparison:
    """All methods side by side: ``original`` and ``retrained`` (the noise floor) first, then by nKLc."""

    spec: str
    seeds: int
    retrainings: int
    samples: int
    rows: tuple[Row, ...]
    retraining_seconds: float

    @property
    def is_measurable(self) -> bool:
        """Whether the original is far enough from retrained models for a gap to mean anything."""
        gaps = [score.gaps["nKLc"] for score in self.rows[0].scores]
        return is_measurable(sum(gaps[1:], gaps[0]))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a record."""
        from excise.audit_table import plain

        record: dict[str, Any] = plain(self)
        return record


def compare(
    task: Task,
    spec: str,
    *,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    retrainings: int = 3,
    tune: bool = True,
    cache: str | Path | None = KEPT_IN,
    progress: bool = False,
) -> Comparison:
    """Run methods on the same requests and hold them against retrained models.

    Args:
        task: The trained model and its data, with a ``test_set``; ``task.retrain`` says how it was trained.
        spec: What to forget, such as ``random:1%``, ``class:3:100``, ``hardest:20`` (see ``parse_request``). What is
            drawn at random is drawn anew for every seed.
        methods: Names from ``excise.baselines.METHODS``; None for all.
        seeds: How often everything is repeated.
        retrainings: Retrained models of every request: the truth, and the noise floor. 2 or more.
        tune: Whether to choose each method's settings on another request; if not, its defaults are taken.
        cache: Folder of retrained models, see ``retrain``.
        progress: Whether to show a bar.
    """
    whole(seeds, "seeds")
    whole(retrainings, "retrainings", 2)
    wanted = [methods] if isinstance(methods, str) else methods or METHODS
    names = [choice(name, tuple(METHODS), "methods") for name in wanted if name != "retrain"]
    if not names:
        raise InputError("methods has nothing to compare with retraining; name at least one other.")
    chosen, reported = _halves(task)
    folder = None if cache is None else Path(cache).expanduser()
    with Stages(enabled=progress) as stages:
        settings: dict[str, dict[str, Any]] = {name: {} for name in names}
        if tune:
            practice = _practice_request(spec, task)
            bench = _bench(
                task, practice, PRACTICE, TUNING_RETRAININGS, chosen, folder, stages, "retraining to tune by"
            )
            stages.begin("tuning", sum(len(GRIDS[name]) for name in names))
            for name in names:
                settings[name] = _tuned(bench, name, stages)
        found: dict[str, list[Score]] = {name: [] for name in ("original", "retrained", *names)}
        failed: dict[str, str] = {}
        for seed in range(seeds):
            request = parse_request(spec, task, seed=seed)
            bench = _bench(task, request, seed, retrainings, reported, folder, stages, f"retraining, seed {seed}")
            found["original"].append(bench.score(task.model, 0.0))
            found["retrained"].append(bench.floor())
            stages.begin(f"forgetting, seed {seed}", len(names))
            for name in names:
                try:
                    found[name].append(bench.run(name, settings[name], seed))
                except InputError as error:  # a method that does not apply, or diverged, does not stop the others
                    failed[name] = str(error)
                stages.advance()
    rows = [Row(name, settings.get(name, {}), tuple(found[name]), failed.get(name, "")) for name in found]
    rest = sorted(rows[2:], key=lambda row: row.gap("nKLc")[0] if row.scores and not row.failed else np.inf)
    return Comparison(spec, seeds, retrainings, len(request), (*rows[:2], *rest), bench.retraining_seconds)


class Bench:
    """One request with its retrained models, to score models on."""

    def __init__(
        self, task: Task, request: Request, truths: Sequence[nn.Module], held_out: Tensor, retraining_seconds: float
    ) -> None:
        self.task, self.request, self.retraining_seconds = task, request, retraining_seconds
        left = kept(task, request.ids)
        self._retained = left[torch.randperm(len(left), generator=torch.Generator().manual_seed(0))[:MOST_RETAINED]]
        self._held_out = held_out
        self._original = self._look(task.model)
        if not self._original.forget.has_classes:
            raise InputError("a comparison is of answers with classes; the targets of this task are none.")
        self._truths = [self._look(model) for model in truths]

    def run(self, name: str, settings: Mapping[str, Any], seed: int) -> Score:
        """Carry the request out by a method, and score what comes of it."""
        begin = time.perf_counter()
        model = METHODS[name](self.task, self.task.model, self.request.ids, seed=seed, **settings)
        seconds = time.perf_counter() - begin
        if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
            raise InputError(f"{name} diverged: its weights are not finite with {dict(settings)}.")
        return self.score(model, seconds)

    def score(self, model: nn.Module, seconds: float) -> Score:
        """How far a model is from the retrained ones."""
        return self._score(self._look(model), self._truths, seconds)

    def floor(self) -> Score:
        """Of each retrained model against the others, the mean: the noise that no method can get below."""
        scores = [
            self._score(one, [other for other in self._truths if other is not one], self.retraining_seconds)
            for one in self._truths
        ]
        gaps = {name: _mean_gap([score.gaps[name] for score in scores]) for name in scores[0].gaps}
        figures = {name: float(np.mean([score.figures[name] for score in scores])) for name in scores[0].figures}
        return Score(gaps, figures, self.retraining_seconds, 1.0)

    @property
    def truth(self) -> dict[str, float]:
        """Mean figures of the retrained models."""
        each = [one.summary for one in self._truths]
        return {name: float(np.mean([one[name] for one in each])) for name in each[0]}

    def _look(self, model: nn.Module) -> _Looked:
        return _Looked(
            answers(self.task, model, self.request.ids),
            answers(self.task, model, self._retained),
            answers(self.task, model, self._held_out, dataset=self.task.test_set),
        )

    def _score(self, one: _Looked, truths: Sequence[_Looked], seconds: float) -> Score:
        mine, before, others = one.logits, self._original.logits, [other.logits for other in truths]
        gaps = {
            "nKLc": divergence_gap(mine, before, others, calibrated=True),
            "nKL": divergence_gap(mine, before, others, calibrated=False),
            "z": margin_gap(mine, before, others, one.forget.targets, one.test.targets),
        }
        if len(truths) == 1:  # a floor needs two
            gaps = {name: replace(gap, floor=gap.model) for name, gap in gaps.items()}
        figures = {
            **one.summary,
            "Avg. Gap": float(np.mean([average_gap(one.summary, other.summary) for other in truths])),
            "ToW": float(np.mean([tug_of_war(one.accuracies, other.accuracies) for other in truths])),
        }
        return Score(gaps, figures, seconds, seconds / self.retraining_seconds)


@dataclass(frozen=True)
class _Looked:
    forget: Answers
    retain: Answers
    test: Answers

    @property
    def logits(self) -> Logits:
        return Logits(self.forget.outputs, self.test.outputs)

    @cached_property
    def accuracies(self) -> list[float]:
        """On forgotten, retained and test samples."""
        groups = (self.forget, self.retain, self.test)
        return [float(np.mean(one.outputs.argmax(1) == one.targets)) for one in groups]

    @cached_property
    def summary(self) -> dict[str, float]:
        """UA, RA, TA, and MIA, the AUC of an attack by loss against held-out samples of the same classes."""
        forget, retain, test = self.accuracies
        others = self.test.losses[np.isin(self.test.targets, self.forget.targets)]
        return {"UA": 1 - forget, "RA": retain, "TA": test, "MIA": _auc(-self.forget.losses, -others)}


def _auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    if len(others) == 0:
        return float("nan")
    return float(roc_auc_score(np.repeat([1, 0], [len(members), len(others)]), np.concatenate([members, others])))


def _tuned(bench: Bench, name: str, stages: Stages) -> dict[str, Any]:
    """The settings of the smallest gap, with a price on accuracy lost."""
    best: tuple[float, dict[str, Any]] = (np.inf, {})
    truth = bench.truth
    for settings in GRIDS[name]:
        try:
            score = bench.run(name, settings, PRACTICE)
        except InputError:
            stages.advance()
            continue
        lost = sum(max(0.0, truth[side] - score.figures[side] - FREE) for side in ("RA", "TA"))
        cost = max(score.gaps["nKLc"].share, 0.0) + PRICE * lost
        if cost < best[0]:
            best = cost, dict(settings)
        stages.advance()
    return best[1]


def _bench(
    task: Task,
    request: Request,
    seed: int,
    retrainings: int,
    held_out: Tensor,
    cache: Path | None,
    stages: Stages,
    label: str,
) -> Bench:
    stages.begin(label, retrainings)
    done = []
    for k in range(retrainings):
        done.append(retrain(task, request.ids, seed=1000 * (seed + 1) + k, cache=cache))
        stages.advance()
    return Bench(task, request, [one.model for one in done], held_out, float(np.mean([one.seconds for one in done])))


def _halves(task: Task) -> tuple[Tensor, Tensor]:
    """Positions of the test samples to tune by, and of those to report on."""
    if task.test_set is None or len(task.test_set) < 2:
        raise InputError(
            "task has no test_set: a comparison needs data that no model has seen; pass test_set= to Task."
        )
    order = torch.randperm(len(task.test_set), generator=torch.Generator().manual_seed(0))
    middle = len(order) // 2
    return order[:middle].sort().values, order[middle:].sort().values


def _practice_request(spec: str, task: Task) -> Request:
    """A request like the one asked for, of other samples."""
    asked = parse_request(spec, task, seed=0)
    kind, _, what = spec.partition(":")
    if kind == "random":
        return parse_request(spec, task, seed=PRACTICE)
    if kind == "hardest":
        ranked = parse_request(f"hardest:{min(2 * len(asked), len(task.train_set) - 1)}", task).ids
        return parse_request(_listed(ranked[len(asked) :] or ranked), task)
    if kind == "class":
        return _other_class(what, task)
    others = kept(task, asked.ids)
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(PRACTICE))
    return parse_request(_listed(others[order[: min(len(asked), len(others) - 1)]].tolist()), task)


def _other_class(what: str, task: Task) -> Request:
    """The same amount of the next class."""
    word, colon, amount = what.partition(":")
    targets = targets_of(task)
    if not are_classes(targets):
        raise InputError(f"the request 'class:{what}' needs one class per sample; ask for random, hardest or ids.")
    classes = np.unique(targets).tolist()
    following = classes[(classes.index(int(word)) + 1) % len(classes)]
    if colon and not amount.endswith("%"):
        amount = str(min(int(amount), int((targets == following).sum())))
    return parse_request(f"class:{following}{colon}{amount}", task, seed=PRACTICE)


def _listed(ids: Sequence[int]) -> str:
    return "ids:" + ",".join(map(str, ids))


def _mean_gap(gaps: Sequence[Gap]) -> Gap:
    return Gap(*(float(np.mean([getattr(gap, part) for gap in gaps])) for part in ("model", "original", "floor")))


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
