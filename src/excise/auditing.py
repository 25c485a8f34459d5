"""Did it work? An audit holds an unlearned model against the original, held-out data and, best, retrained models.

Every figure is taken of the original, the unlearned and each retrained model alike, because none means much by itself:
the target is what a model gets that never saw the samples.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.answers import Answers, answers
from excise.change import Change, change_between
from excise.duplicates import Twin, near_duplicates
from excise.errors import InputError
from excise.features import penultimate
from excise.fewshot import FewShot, few_shot_probe
from excise.forgotten import Forgotten
from excise.gap import Gap, Logits, average_gap, divergence_gap, margin_gap, tug_of_war
from excise.holdout import HeldOutComparison, against_held_out
from excise.inputs import choice, whole
from excise.membership import (
    Attack,
    RatioAttack,
    confidence,
    entropy_score,
    likelihood_ratio_attack,
    loss_score,
    margin,
    modified_entropy_score,
    threshold_attack,
)
from excise.progress import Stages
from excise.relearning import Relearning, relearn_steps
from excise.retraining import (
    KEPT_IN,
    _update,
    hash_of_model,
    hash_of_samples,
    kept,
    require_same_architecture,
    retrain,
    seeded,
)
from excise.targets import are_classes, targets_of
from excise.task import Ids, Task, positions
from excise.utility import Utility, retrieval, utility

Kind = Literal["auto", "samples", "class"]
Metric = Literal["auto", "accuracy", "micro-f1", "rmse", "retrieval"]
MOST_RETAINED = 10_000  # of the retained samples, drawn at random, that figures are taken on
FLOOR_PAIRS = 3  # retrained models that are needed for a likelihood ratio
SHOTS = 5  # samples of each class that the probe learns from, or fewer where the test set has fewer


@dataclass(frozen=True)
class Figures:
    """What was measured of one model."""

    name: str
    forget: Utility
    retain: Utility
    test: Utility
    attacks: dict[str, Attack]
    """By what they look at; ``loss`` is there for every task, the others for classes."""
    held_out: HeldOutComparison
    """The forgotten samples' losses against those of held-out samples of the same classes."""
    relearning: Relearning
    probe: FewShot | None
    """For classes and persons: how well a few examples bring them back."""
    model_hash: str

    @property
    def summary(self) -> dict[str, float]:
        """UA, RA, TA and MIA: what other papers average their gaps over. The first three are NaN of an error (rmse)."""
        forget, retain, test = self.shares
        return {"UA": 1 - forget, "RA": retain, "TA": test, "MIA": self.attacks["loss"].auc}

    @property
    def shares(self) -> tuple[float, float, float]:
        """How much was right of forgotten, retained and test samples; NaN of an error, which is no share."""
        if self.forget.metric == "rmse":
            return np.nan, np.nan, np.nan
        return self.forget.value, self.retain.value, self.test.value


@dataclass(frozen=True)
class ToRetraining:
    """How far the unlearned model is from retrained ones, and these from each other: the floor, NaN of a single one."""

    models: int
    average_gap: float
    average_gap_floor: float
    tug_of_war: float
    tug_of_war_floor: float
    forget: Gap | None
    """KL(retrained ‖ model) on the forgotten samples; of several labels, on each. None where numbers are predicted."""
    forget_calibrated: Gap | None
    """The same with temperatures fitted: a model whose outputs were merely softened does not pass."""
    test: Gap | None
    test_calibrated: Gap | None
    margins: Gap | None
    """Squared distance of standardised margins."""
    ratio: RatioAttack | None
    """Every sample against its own distribution over retrained models, of which it needs three."""


@dataclass(frozen=True, eq=False)
class Audit:
    """All that was measured. It prints as a table; ``verdict`` says what it means, ``save`` writes it as JSON."""

    ids: tuple[int, ...]
    sample_hashes: tuple[str, ...]
    kind: Literal["samples", "class"]
    classes: tuple[int, ...]
    metric: str
    original: Figures
    unlearned: Figures
    retrained: tuple[Figures, ...]
    to_retraining: ToRetraining | None
    twins: tuple[Twin, ...]
    change: Change
    losses: dict[str, dict[str, tuple[float, ...]]]
    """For plots: of each model, the losses of the forgotten samples and of held-out ones of the same classes."""
    train_hash: str
    seed: int

    @property
    def models(self) -> tuple[Figures, ...]:
        """Of every model that was looked at."""
        return self.original, self.unlearned, *self.retrained

    @property
    def verdict(self) -> Any:
        """What it means, with reasons."""
        from excise.verdict import judge

        return judge(self)

    def __eq__(self, other: object) -> bool:
        """Whether the same was found, in however many seconds; what is not a number equals itself here."""
        from excise.audit_table import plain

        def timeless(one: Audit) -> Any:
            return plain(replace(one, change=replace(one.change, seconds=None, retraining_seconds=None)))

        return isinstance(other, Audit) and bool(timeless(self) == timeless(other))

    __hash__ = None  # type: ignore[assignment]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a record."""
        from excise.audit_table import plain

        return {**plain(self), "verdict": plain(self.verdict)}

    def save(self, path: str | Path) -> None:
        """Write everything as JSON."""
        from excise.audit_table import write_json

        write_json(self.as_dict(), Path(path))

    def __str__(self) -> str:
        from excise.audit_table import text

        return text(self)


def audit(
    task: Task,
    original: nn.Module,
    unlearned: nn.Module | Forgotten,
    forget: Ids,
    *,
    retrained: int | nn.Module | Sequence[nn.Module] | None = None,
    seed: int = 0,
    kind: Kind = "auto",
    metric: Metric = "auto",
    cache: str | Path | None = KEPT_IN,
    budget: dict[str, Any] | None = None,
    retraining_seconds: float | None = None,
    progress: bool = False,
) -> Audit:
    """Measure how well a model forgot samples. No model that is given is changed.

    Args:
        task: Data and objective; its ``test_set`` is needed, as data that no model has seen.
        original: The model before.
        unlearned: The model after, or what ``Unlearner.forget`` gave, which also tells slices and certificate.
        forget: Positions in ``train_set`` of the samples that should be forgotten.
        retrained: Models that were trained without them, the truth to compare with; three or more give a noise floor
            and a likelihood-ratio attack. A number retrains so many (see ``Task.retrain``).
        seed: For everything random.
        kind: Whether single samples or a whole class or person were forgotten; ``"auto"`` looks whether any sample of
            the class is left.
        metric: How good answers are; ``"auto"`` is accuracy for classes, micro-F1 for several labels a sample, and the
            error for numbers. ``"retrieval"`` takes mAP of the penultimate features.
        cache: Folder in which retrained models are kept under a hash of all that they depend on, so that a second
            audit need not train them; None for none.
        budget: What is left of a privacy budget, for the record.
        retraining_seconds: What a retraining takes, if known.
        progress: Whether to show a bar.
    """
    gone = _checked_ids(task, forget)
    seed = whole(seed, "seed", 0)
    choice(kind, get_args(Kind), "kind")
    choice(metric, get_args(Metric), "metric")
    done = unlearned if isinstance(unlearned, Forgotten) else None
    if done is not None and (extra := set(done.ids) - set(gone.tolist())):
        raise InputError(f"forget lacks sample {min(extra)}, which unlearned forgot; audit all that was forgotten.")
    before, after = _checked(task, original, "original"), _checked(task, done.model if done else unlearned, "unlearned")
    _require_test_set(task, gone)
    with seeded(seed), Stages(enabled=progress) as stages:
        eye = _Eye(task, gone, seed, kind, metric, before)  # first, since it may find that there is nothing to see
        truths, took = _truths(task, gone, retrained, seed, cache, stages)
        models = (before, after, *truths)
        stages.begin("auditing", len(models))
        figures = []
        names = ["original", "unlearned", *(f"retrained {k + 1}" for k in range(len(truths)))]
        for name, model in zip(names, models, strict=True):
            figures.append(eye.figures(name, model))
            stages.advance()
        stages.begin("looking for near-duplicates")
        twins = near_duplicates(task, gone)
        seen = [eye.seen(model) for model in models]
        seconds = took if retraining_seconds is None else retraining_seconds
        change = change_between(before, after, done, budget, seconds)
    return Audit(
        ids=tuple(gone.tolist()),
        sample_hashes=tuple(hash_of_samples(task, [sample]) for sample in gone.tolist()),
        kind=eye.kind,
        classes=eye.classes,
        metric=eye.metric,
        original=figures[0],
        unlearned=figures[1],
        retrained=tuple(figures[2:]),
        to_retraining=_to_retraining(figures, seen, seed, eye.metric) if truths else None,
        twins=twins,
        change=change,
        losses={one.name: eye.losses(looked) for one, looked in zip(figures, seen, strict=True)},
        train_hash=hash_of_samples(task),
        seed=seed,
    )


@dataclass(frozen=True)
class _Seen:
    """A model's answers to each group of samples."""

    forget: Answers
    retain: Answers
    test: Answers


class _Eye:
    """Looks at one model after the other in the same way, and remembers what it saw."""

    def __init__(self, task: Task, gone: Tensor, seed: int, kind: Kind, metric: Metric, original: nn.Module) -> None:
        self.task, self.gone, self._seed = task, gone, seed
        left = kept(task, gone)
        order = torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))
        self.retained = left[order[:MOST_RETAINED].sort().values]
        self._looked: dict[int, _Seen] = {}
        targets = targets_of(task, model=original)
        self._has_classes = are_classes(targets)
        if self._has_classes:
            _require_classes(targets)
        mine = sorted(set(targets[gone.numpy()].tolist())) if self._has_classes else []
        whole_classes = bool(mine) and not np.isin(targets[left.numpy()], mine).any()
        self.kind: Literal["samples", "class"] = (
            "class" if kind == "class" or (kind == "auto" and whole_classes) else "samples"
        )
        if self.kind == "class" and not mine:
            raise InputError('kind="class" is for targets that are one class each; pass kind="samples".')
        self.classes = tuple(int(one) for one in mine) if self.kind == "class" else ()
        before = self.seen(original)
        _require_answers("original", before)
        if self._has_classes:
            _require_same_classes(before)
        self._target_loss = float(before.forget.losses.mean())
        self._asked = metric
        self.metric = "mAP" if metric == "retrieval" else utility(before.test, metric=metric).metric
        self._alike = _of_same_classes(before)

    def seen(self, model: nn.Module) -> _Seen:
        """The model's answers; computed once."""
        if id(model) not in self._looked:
            self._looked[id(model)] = _Seen(
                answers(self.task, model, self.gone),
                answers(self.task, model, self.retained),
                answers(self.task, model, dataset=self.task.test_set),
            )
        return self._looked[id(model)]

    def figures(self, name: str, model: nn.Module) -> Figures:
        seen = self.seen(model)
        _require_answers(name, seen)
        forget, retain, test = self._utilities(model, seen)
        return Figures(
            name=name,
            forget=forget,
            retain=retain,
            test=test,
            attacks=self._attacks(seen),
            held_out=against_held_out(
                seen.forget.losses, seen.forget.targets, seen.test.losses, seen.test.targets, seed=self._seed
            ),
            relearning=relearn_steps(self.task, model, self.gone, self._target_loss, seed=self._seed),
            probe=self._probe(model, seen),
            model_hash=hash_of_model(model),
        )

    def _probe(self, model: nn.Module, seen: _Seen) -> FewShot | None:
        """Asked with five samples of each class, or with as many as leave one to be tested on."""
        shots = min([SHOTS, *(int(np.sum(seen.test.targets == one)) - 1 for one in self.classes)])
        several = len(np.unique(seen.test.targets)) > 1
        if not self.classes or shots < 1 or not several:
            return None
        return few_shot_probe(self.task, model, self.classes, shots=shots, seed=self._seed)

    def losses(self, seen: _Seen) -> dict[str, tuple[float, ...]]:
        """Losses of the forgotten, and quantiles of those of held-out samples of the same classes."""
        others = np.quantile(seen.test.losses[self._alike], np.linspace(0, 1, 201))
        return {"forget": tuple(seen.forget.losses.tolist()), "held-out": tuple(others.tolist())}

    def _utilities(self, model: nn.Module, seen: _Seen) -> list[Utility]:
        groups = (seen.forget, seen.retain, seen.test)
        if self._asked != "retrieval":
            return [utility(one, metric=self._asked) for one in groups]
        features = [penultimate(self.task, model, ids) for ids in (self.gone, self.retained)]
        trained = np.concatenate(features)
        identities = np.concatenate([seen.forget.targets, seen.retain.targets])
        found = retrieval(trained, identities)
        held_out = retrieval(penultimate(self.task, model, dataset=self.task.test_set), seen.test.targets)
        split = len(self.gone)
        return [
            found.of(slice(None, split), seen.forget),
            found.of(slice(split, None), seen.retain),
            held_out.of(slice(None), seen.test),
        ]

    def _attacks(self, seen: _Seen) -> dict[str, Attack]:
        inside, outside = seen.forget, _part(seen.test, self._alike)

        def attack(score: Any) -> Attack:
            return threshold_attack(score(inside), score(outside), seed=self._seed)

        found = {"loss": attack(lambda one: loss_score(one.losses))}
        if seen.forget.has_classes:
            found["confidence"] = attack(lambda one: confidence(one.outputs, one.targets))
            found["entropy"] = attack(lambda one: entropy_score(one.outputs))
            found["modified entropy"] = attack(lambda one: modified_entropy_score(one.outputs, one.targets))
        return found


def _to_retraining(figures: list[Figures], seen: list[_Seen], seed: int, metric: str) -> ToRetraining:
    _, after, *truths = figures
    summaries = [one.summary for one in truths]
    pairs = [(a, b) for a in range(len(truths)) for b in range(len(truths)) if a != b]
    gaps: dict[str, Gap | None] = dict.fromkeys(("forget", "forget_calibrated", "test", "test_calibrated", "margins"))
    ratio = None
    if metric != "rmse":
        asked = [(_as_classes(one.forget), _as_classes(one.test)) for one in seen]
        before, model, *others = (Logits(forget[0], test[0]) for forget, test in asked)
        for on, name in (("forget", "forget"), ("held_out", "test")):
            for calibrated, ending in ((False, ""), (True, "_calibrated")):
                gaps[name + ending] = divergence_gap(model, before, others, calibrated=calibrated, on=on)  # type: ignore[arg-type]
        (_, labels), (_, held_out_labels) = asked[0]
        gaps["margins"] = margin_gap(model, before, others, labels, held_out_labels)
        if len(truths) >= FLOOR_PAIRS and len(labels) == len(seen[0].forget):
            ratio = _ratio([margin(one.forget, labels) for one in (model, *others)], seed)
    return ToRetraining(
        models=len(truths),
        average_gap=float(np.mean([average_gap(after.summary, truth) for truth in summaries])),
        average_gap_floor=_mean([average_gap(summaries[a], summaries[b]) for a, b in pairs]),
        tug_of_war=float(np.mean([tug_of_war(after.shares, truth.shares) for truth in truths])),
        tug_of_war_floor=_mean([tug_of_war(truths[a].shares, truths[b].shares) for a, b in pairs]),
        ratio=ratio,
        **gaps,
    )


def _as_classes(one: Answers) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits and classes in rows; of labels that are 0 or 1 each is a row of its own, with the logits of no and yes."""
    if one.has_classes:
        return one.outputs, one.targets
    yes = one.outputs.reshape(-1)
    return np.stack([np.zeros_like(yes), yes], axis=1), one.targets.reshape(-1).astype(np.int64)


def _ratio(margins: list[NDArray[np.float64]], seed: int) -> RatioAttack | None:
    try:
        return likelihood_ratio_attack(margins[0], np.array(margins[1:]), seed=seed)
    except InputError:  # retrained models that agree, as where training has one outcome, have no spread to measure by
        return None


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _truths(
    task: Task,
    gone: Tensor,
    given: int | nn.Module | Sequence[nn.Module] | None,
    seed: int,
    cache: str | Path | None,
    stages: Stages,
) -> tuple[list[nn.Module], float | None]:
    """The retrained models, and the seconds that one took, where it was trained here or before."""
    if given is None:
        return [], None
    if isinstance(given, nn.Module):
        given = [given]
    if isinstance(given, Iterable):
        models = [_checked(task, model, "retrained has a model that") for model in given]
        if not models:
            raise InputError("retrained has no model; pass some, how many to train, or None to do without.")
        return models, None
    folder = None if cache is None else Path(cache).expanduser()
    stages.begin("retraining", whole(given, "retrained"))
    found = []
    for k in range(given):
        found.append(retrain(task, gone, seed=1000 * (seed + 1) + k, cache=folder))
        stages.advance()
    models = [_checked(task, one.model, "task.retrain gave a model that") for one in found]
    return models, float(np.mean([one.seconds for one in found]))


def _checked_ids(task: Task, forget: Ids) -> Tensor:
    try:
        gone = positions(forget, len(task.train_set))
    except InputError as error:
        raise InputError(f"forget: {error}") from None
    if len(gone) == len(task.train_set):
        raise InputError(f"forget has all {len(gone)} samples of train_set; leave at least one to retain.")
    return gone


def _checked(task: Task, model: Any, what: str) -> nn.Module:
    """The model, if it is built as the task's; what that one trains is trainable in it too, else in a copy of it."""
    require_same_architecture(task.model, model, what)
    trained = [weight.requires_grad for weight in task.model.parameters()]
    if trained != [weight.requires_grad for weight in model.parameters()]:
        model = copy.deepcopy(model)
        for weight, right in zip(model.parameters(), trained, strict=True):
            weight.requires_grad_(right)
    checked: nn.Module = model
    return checked


def _require_test_set(task: Task, gone: Tensor) -> None:
    if task.test_set is None or len(task.test_set) == 0:
        raise InputError("task has no test_set: an audit needs data that no model has seen; pass test_set= to Task.")
    wanted = {_digest(task, sample, task.train_set): int(sample) for sample in gone.tolist()}
    for place in range(len(task.test_set)):
        twin = wanted.get(_digest(task, place, task.test_set))
        if twin is not None:
            raise InputError(
                f"forget has sample {twin}, which is also in task.test_set (position {place}): what is forgotten can't "
                "serve as data that was never seen; take it out of the test set."
            )


def _digest(task: Task, sample: int, data: Any) -> bytes:
    """Of the inputs alone: another label does not make it another image."""
    batch = task.batch([sample], data)
    digest = hashlib.sha256()
    _update(digest, {key: batch[key] for key in batch if key != "labels"} if isinstance(batch, dict) else batch[0])
    return digest.digest()


def _require_classes(targets: NDArray[Any]) -> None:
    if len(np.unique(targets)) < 2:
        raise InputError(
            f"train_set has one class only ({targets[0]}), so every answer is right and nothing can be measured; "
            "pass data of two or more classes."
        )


def _require_same_classes(seen: _Seen) -> None:
    """Refuse a test set without samples to compare the forgotten ones with."""
    missing = np.setdiff1d(seen.forget.targets, seen.test.targets)
    if len(missing):
        raise InputError(
            f"forget has samples of class {missing[0]}, of which task.test_set has none to compare with; add some, two "
            "or more."
        )
    if np.isin(seen.test.targets, seen.forget.targets).sum() < 2:
        raise InputError("task.test_set has 1 sample of forget's classes to compare with; add some, two or more.")


def _require_answers(name: str, seen: _Seen) -> None:
    for group in (seen.forget, seen.retain, seen.test):
        if not (np.isfinite(group.outputs).all() and np.isfinite(group.losses).all()):
            raise InputError(
                f"{name}: the model's answers or losses are not all finite, so there is nothing to measure; see "
                "whether its training diverged (to mask a class, take a large number rather than infinity)."
            )


def _of_same_classes(seen: _Seen) -> NDArray[np.bool_]:
    """Which held-out samples are of the forgotten ones' classes: those to compare with."""
    if not seen.forget.has_classes:
        return np.ones(len(seen.test), dtype=bool)
    return np.isin(seen.test.targets, seen.forget.targets)


def _part(seen: Answers, some: NDArray[np.bool_]) -> Answers:
    return replace(seen, outputs=seen.outputs[some], targets=seen.targets[some], losses=seen.losses[some])
