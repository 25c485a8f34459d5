"""Which method forgets best? All of them on the same request, tuned alike, beside the noise floor of retraining.

Every method is tuned over its own short list of settings on another request of the same kind and on one half of the
held-out samples; what is reported is taken on the requests asked for and on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from excise._support.checks import choice, whole
from excise._support.progress import Stages
from excise.baselines import GRIDS, METHODS
from excise.baselines.methods import option_names
from excise.errors import InputError, NothingForgotten
from excise.evidence.against_retraining import is_measurable
from excise.evidence.evaluation import Evaluator, GroupPredictions
from excise.evidence.gap import Gap, average_gap, divergence_gap, margin_gap, tug_of_war
from excise.evidence.retrained import retrained_models
from excise.task.ids import all_but
from excise.task.requests import Request, parse_request
from excise.task.targets import are_classes, targets_of
from excise.task.task import Task
from excise.training.retraining import KEPT_IN
from excise.training.several import retrain_ahead

PRACTICE = 10**6  # seed of the request that methods are tuned on, far from those reported
TUNING_RETRAININGS = 2
ACCURACY_LOST_FREELY = 0.005  # by a method's setting, of retained and of test samples
GAP_PER_ACCURACY_LOST = 20.0  # what the rest costs when settings are compared: a point of accuracy is 0.2 of the gap


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
        pooled = Gap.pooled(gaps)
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
        return is_measurable(Gap.pooled(gaps))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a record."""
        from excise.evidence.text import plain

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
        retrainings: Retrained models of every request: the target, and the noise floor. 2 or more.
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
    with Stages(enabled=progress) as stages:
        settings: dict[str, dict[str, Any]] = {name: {} for name in names}
        requests = [parse_request(spec, task, seed=seed) for seed in range(seeds)]
        practice = _practice_request(spec, task) if tune else None
        asked = [] if practice is None else [(practice.ids, TUNING_RETRAININGS, PRACTICE)]
        asked += [(request.ids, retrainings, seed) for seed, request in enumerate(requests)]
        retrain_ahead(task, asked, cache=cache)
        if practice is not None:
            bench = _benchmark(
                task, practice, PRACTICE, TUNING_RETRAININGS, chosen, chosen, cache, stages, "retraining to tune by"
            )
            stages.begin("tuning", sum(len(GRIDS[name]) for name in names))
            for name in names:
                settings[name] = _tuned(bench, name, stages)
        found: dict[str, list[Score]] = {name: [] for name in ("original", "retrained", *names)}
        failed: dict[str, str] = {}
        for seed, request in enumerate(requests):
            label = f"retraining, seed {seed}"
            bench = _benchmark(task, request, seed, retrainings, reported, chosen, cache, stages, label)
            found["original"].append(bench.score(task.model, 0.0))
            found["retrained"].append(bench.floor())
            stages.begin(f"forgetting, seed {seed}", len(names))
            for name in names:
                try:
                    found[name].append(bench.run(name, settings[name], seed))
                except (InputError, NothingForgotten) as error:  # what does not apply, or diverged, stops no other
                    failed[name] = str(error)
                stages.advance()
    rows = [Row(name, settings.get(name, {}), tuple(found[name]), failed.get(name, "")) for name in found]
    rest = sorted(rows[2:], key=lambda row: row.gap("nKLc")[0] if row.scores and not row.failed else np.inf)
    return Comparison(spec, seeds, retrainings, len(request), (*rows[:2], *rest), bench.retraining_seconds)


class RequestBenchmark:
    """One request with its retrained models, to score models on.

    Scores are of the test samples at ``held_out``; methods that learn from some get those at ``open_to_methods``.
    """

    def __init__(
        self,
        task: Task,
        request: Request,
        retrained: Sequence[nn.Module],
        held_out: Tensor,
        open_to_methods: Tensor,
        retraining_seconds: float,
    ) -> None:
        self.task, self.request, self.retraining_seconds = task, request, retraining_seconds
        self._open_to_methods = open_to_methods
        self._evaluator = Evaluator(task, request.ids, held_out=held_out)
        self._original = self._evaluator.predictions(task.model)
        if not self._original.has_classes:
            raise InputError("a comparison is of answers with classes; the targets of this task are none.")
        self._retrained = self._evaluator.all_predictions(retrained)

    def run(self, name: str, settings: Mapping[str, Any], seed: int) -> Score:
        """Carry the request out by a method, and score what comes of it."""
        begin = time.perf_counter()
        open_ = {"held_out": self._open_to_methods} if "held_out" in option_names(name) else {}
        model = METHODS[name](self.task, self.task.model, self.request.ids, seed=seed, **open_, **settings)
        seconds = time.perf_counter() - begin
        if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
            raise InputError(f"{name} diverged: its weights are not finite with {dict(settings)}.")
        return self.score(model, seconds)

    def score(self, model: nn.Module, seconds: float) -> Score:
        """How far a model is from the retrained ones."""
        return self._score(self._evaluator.predictions(model), self._retrained, seconds)

    def floor(self) -> Score:
        """Of each retrained model against the others, the mean: the noise that no method can get below."""
        scores = [
            self._score(one, [other for other in self._retrained if other is not one], self.retraining_seconds)
            for one in self._retrained
        ]
        gaps = {name: Gap.mean([score.gaps[name] for score in scores]) for name in scores[0].gaps}
        figures = {name: float(np.mean([score.figures[name] for score in scores])) for name in scores[0].figures}
        return Score(gaps, figures, self.retraining_seconds, 1.0)

    @property
    def target(self) -> dict[str, float]:
        """Mean figures of the retrained models."""
        each = [one.summary for one in self._retrained]
        return {name: float(np.mean([one[name] for one in each])) for name in each[0]}

    def _score(self, one: GroupPredictions, retrained: Sequence[GroupPredictions], seconds: float) -> Score:
        given = one.logits, self._original.logits, [other.logits for other in retrained]
        gaps = {
            "nKLc": divergence_gap(*given, calibrated=True),
            "nKL": divergence_gap(*given, calibrated=False),
            "z": margin_gap(*given, *one.labels),
        }
        if len(retrained) == 1:  # a floor needs two
            gaps = {name: replace(gap, floor=gap.model) for name, gap in gaps.items()}
        figures = {
            **one.summary,
            "Avg. Gap": float(np.mean([average_gap(one.summary, other.summary) for other in retrained])),
            "ToW": float(np.mean([tug_of_war(one.accuracies, other.accuracies) for other in retrained])),
        }
        return Score(gaps, figures, seconds, seconds / self.retraining_seconds)


def _tuned(bench: RequestBenchmark, name: str, stages: Stages) -> dict[str, Any]:
    """The settings of the smallest gap, with a price on accuracy lost."""
    best: tuple[float, dict[str, Any]] = (np.inf, {})
    target = bench.target
    for settings in GRIDS[name]:
        try:
            score = bench.run(name, settings, PRACTICE)
        except (InputError, NothingForgotten):
            stages.advance()
            continue
        lost = sum(max(0.0, target[side] - score.figures[side] - ACCURACY_LOST_FREELY) for side in ("RA", "TA"))
        cost = max(score.gaps["nKLc"].share, 0.0) + GAP_PER_ACCURACY_LOST * lost
        if cost < best[0]:
            best = cost, dict(settings)
        stages.advance()
    return best[1]


def _benchmark(
    task: Task,
    request: Request,
    seed: int,
    retrainings: int,
    held_out: Tensor,
    open_to_methods: Tensor,
    cache: str | Path | None,
    stages: Stages,
    label: str,
) -> RequestBenchmark:
    models, seconds = retrained_models(
        task, request.ids, retrainings, seed=seed, cache=cache, stages=stages, label=label
    )
    return RequestBenchmark(task, request, models, held_out, open_to_methods, seconds)


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
    others = all_but(asked.ids, len(task.train_set))
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


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
