"""Did it work? An audit holds an unlearned model against the original, held-out data and, best, retrained models.

Every figure is taken of the original, the unlearned and each retrained model alike, because none means much by itself:
the target is what a model gets that never saw the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.checks import choice, whole
from excise._support.files import write_json
from excise._support.progress import Stages
from excise.errors import InputError
from excise.evidence.admission import admitted_ids, admitted_model, require_test_set
from excise.evidence.duplicates import NearDuplicate, near_duplicates
from excise.evidence.effort import Effort
from excise.evidence.elsewhere import found_elsewhere
from excise.evidence.evaluation import Evaluator
from excise.evidence.measuring import Kind, Measurer, UtilityName, losses_to_plot
from excise.evidence.metrics import rows_of
from excise.evidence.model_metrics import ModelMetrics
from excise.evidence.outcomes import Verdict
from excise.evidence.representation import representation
from excise.evidence.retrained import given_or_retrained, require_as_good
from excise.evidence.sample_hashes import admitted_key, new_hash_key, sample_hash
from excise.evidence.to_retraining import ToRetraining, to_retraining
from excise.evidence.verdict import verdict
from excise.task.ids import Ids, all_but, positions
from excise.task.sharded import refuse_sharded
from excise.task.task import Task
from excise.training.retraining import KEPT_IN, seeded
from excise.unlearning.agreement import require_alike, require_same_models
from excise.unlearning.change import Change, change_between
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.suitability import warn_of_changing_data


@dataclass(frozen=True, eq=False)
class Audit:
    """All that was measured. It prints as a table; ``verdict`` says what it means, ``save`` writes it as JSON."""

    ids: tuple[int, ...]
    """What the request was for."""
    keys: tuple[Any, ...] | None
    """The user's own keys that it named, such as customers; None where it named samples."""
    earlier: tuple[int, ...]
    """What earlier requests had forgotten: retrained models are without these too."""
    sample_hashes: tuple[str, ...]
    """HMAC-SHA256 of each sample under ``hash_key``."""
    kind: Literal["samples", "class"]
    classes: tuple[int, ...]
    metric: str
    original: ModelMetrics
    unlearned: ModelMetrics
    retrained: tuple[ModelMetrics, ...]
    to_retraining: ToRetraining | None
    near_duplicates: tuple[NearDuplicate, ...]
    change: Change
    losses: dict[str, dict[str, tuple[float, ...]]]
    """For plots: of each model, the losses of the forgotten samples and of held-out ones of the same classes."""
    train_hash: str | None
    """Of all training samples in their order (``Task.fingerprint``); None where they differ at each reading."""
    seed: int
    hash_key: bytes = field(repr=False, metadata={"secret": True})
    """By which the samples' hashes can be checked (``sample_hash``). Keep it: neither page nor JSON has it."""
    elsewhere: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """In which further sets (``also=``) forgotten samples, or others of the request's keys, were found: positions."""
    verdict: Verdict = field(init=False)
    """What it means, with reasons."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", verdict(self))

    @property
    def models(self) -> tuple[ModelMetrics, ...]:
        """Of every model that was looked at."""
        return self.original, self.unlearned, *self.retrained

    def __eq__(self, other: object) -> bool:
        """Whether the same was found, in however many seconds; what is not a number equals itself here.

        Samples are named by their ids, since hashes under two keys can't be compared.
        """
        from excise.evidence.text import plain

        def timeless(one: Audit) -> Any:
            change = replace(one.change, seconds=None, retraining_seconds=None)
            return plain(replace(one, change=change, sample_hashes=()))

        return isinstance(other, Audit) and bool(timeless(self) == timeless(other))

    __hash__ = None  # type: ignore[assignment]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a record."""
        from excise.evidence.text import plain

        metrics = {row.metric.name.format(metric=self.metric): row.values for row in rows_of(self)}
        return {**plain(self), "metrics": plain(metrics)}

    def save(self, path: str | Path) -> None:
        """Write everything as JSON."""
        write_json(path, self.as_dict())

    def __str__(self) -> str:
        from excise.evidence.text import text

        return text(self)


def audit(
    task: Task,
    original: nn.Module | Forgotten,
    unlearned: nn.Module | Forgotten | None = None,
    forget: Ids | None = None,
    *,
    retrained: int | nn.Module | Sequence[nn.Module] | None = None,
    seed: int = 0,
    kind: Kind = "auto",
    metric: UtilityName = "auto",
    attacks: Sequence[str] | None = None,
    forgotten: Ids = (),
    effort: Effort | None = None,
    cache: str | Path | None = KEPT_IN,
    budget: dict[str, Any] | None = None,
    retraining_seconds: float | None = None,
    also: Mapping[str, Any] | None = None,
    hash_key: bytes | None = None,
    progress: bool = False,
) -> Audit:
    """Measure how well a model forgot samples. No model that is given is changed.

    ``audit(task, done)`` with what ``Unlearner.forget`` gave is the same as
    ``audit(task, done.before, done, done.ids)``.

    Args:
        task: Data and objective; its ``test_set`` is needed, as data that no model has seen.
        original: The model before; or what ``Unlearner.forget`` gave, and nothing after it.
        unlearned: The model after, or what ``Unlearner.forget`` gave, which also tells slices and certificate.
        forget: Positions in ``train_set`` of the samples that should be forgotten.
        retrained: Models that were trained without them, the truth to compare with; three or more give a noise floor
            and a likelihood-ratio attack. A number retrains so many (see ``Task.retrain``).
        seed: For everything random.
        kind: Whether single samples or a whole class or person were forgotten; ``"auto"`` looks whether any sample of
            the class is left.
        metric: How good answers are; ``"auto"`` is accuracy for classes, micro-F1 for several labels a sample, and the
            error for numbers. ``"retrieval"`` takes mAP of the penultimate features.
        attacks: Names of the membership attacks to run, from ``excise.evidence.metrics.ATTACKS``; that by loss, which
            the verdict rests on, is always run. None for all that apply.
        forgotten: Samples that earlier requests had forgotten: they count as gone, also for retraining. What
            ``Unlearner.forget`` gave knows its own.
        effort: How much work to do (see ``Effort``); None for the usual.
        cache: Folder in which retrained models are kept under a hash of all that they depend on, so that a second
            audit need not train them; None for none.
        budget: What is left of a privacy budget, for the record.
        retraining_seconds: What a retraining takes, if known.
        also: Further sets to look for the forgotten samples in, such as ``{"validation": dataset}``: where training
            was stopped or chosen by a set, a person's rows in it are to be deleted as well. A set may come with a key
            for each of its samples, ``{"validation": (dataset, keys)}``: those of the request are found by these too.
        hash_key: A secret of 16 bytes or more under which samples are hashed, so that no one else can check a guess;
            None for a new one, which the outcome's ``hash_key`` hands out and nothing else keeps.
        progress: Whether to show a bar.

    In an initialised process group all processes call it, and share the work; each retraining is of one process.
    """
    with processes.together("audit"):
        return _audited(
            task,
            original,
            unlearned,
            forget,
            retrained=retrained,
            seed=seed,
            kind=kind,
            metric=metric,
            attacks=attacks,
            forgotten=forgotten,
            effort=effort,
            cache=cache,
            budget=budget,
            retraining_seconds=retraining_seconds,
            also=also,
            hash_key=hash_key,
            progress=progress and processes.is_first(),
        )


def _audited(
    task: Task,
    original: nn.Module | Forgotten,
    unlearned: nn.Module | Forgotten | None,
    forget: Ids | None,
    *,
    retrained: int | nn.Module | Sequence[nn.Module] | None,
    seed: int,
    kind: Kind,
    metric: UtilityName,
    attacks: Sequence[str] | None,
    forgotten: Ids,
    effort: Effort | None,
    cache: str | Path | None,
    budget: dict[str, Any] | None,
    retraining_seconds: float | None,
    also: Mapping[str, Any] | None,
    hash_key: bytes | None,
    progress: bool,
) -> Audit:
    """What ``audit`` does."""
    original, unlearned, forget = _spelled_out(task, original, unlearned, forget)
    refuse_sharded(task.model, "an audit")
    gone = admitted_ids(task, forget)
    seed, effort = whole(seed, "seed", 0), effort or Effort()
    key = new_hash_key() if hash_key is None else admitted_key(hash_key)
    key = processes.gathered(key, "the key of hashes")[0]
    choice(kind, get_args(Kind), "kind")
    choice(metric, get_args(UtilityName), "metric")
    done = unlearned if isinstance(unlearned, Forgotten) else None
    if done is not None and (extra := set(done.ids) - set(gone.tolist())):
        raise InputError(f"forget lacks sample {min(extra)}, which unlearned forgot; audit all that was forgotten.")
    earlier = _earlier(task, gone, forgotten, done)
    all_gone = torch.cat([gone, earlier])
    before = admitted_model(task, original, "original")
    after = admitted_model(task, done.model if done else unlearned, "unlearned")
    require_same_models(before, after, *_given(retrained))
    require_alike(task, [gone.tolist(), earlier.tolist(), seed, kind, metric, attacks, effort, retrained is None])
    with seeded(seed), Stages(enabled=progress) as stages:
        samples = task.only(gone)  # which several figures are taken of
        require_test_set(task, gone, samples)
        elsewhere = found_elsewhere(task, samples, also or {}, None if done is None else done.keys)
        warn_of_changing_data(task, all_but(all_gone, len(task.train_set)))
        evaluator = Evaluator(task, gone, earlier=earlier, retained_samples=effort.retained_samples, seed=seed)
        # before any training, since it may find that there is nothing to see
        measurer = Measurer(
            evaluator,
            samples,
            before,
            seed=seed,
            kind=kind,
            utility_name=metric,
            attacks=attacks,
            effort=effort,
        )
        never_saw, seconds = given_or_retrained(task, all_gone, retrained, seed=seed, cache=cache, stages=stages)
        models = (before, after, *never_saw)
        names = ["original", "unlearned", *(f"retrained {k + 1}" for k in range(len(never_saw)))]
        stages.begin("auditing", len(models))
        predictions = evaluator.all_predictions(models)
        if task.retrain is None and isinstance(retrained, int):
            require_as_good(predictions[0], predictions[2:])
        metrics = []
        for name, model in zip(names, models, strict=True):
            metrics.append(measurer.metrics(name, model))
            stages.advance()
        stages.begin("looking for near-duplicates")
        alike = near_duplicates(task, gone, among=all_but(all_gone, len(task.train_set)) if len(earlier) else None)
        took = seconds if retraining_seconds is None else retraining_seconds
        change = change_between(before, after, done, budget, took)
        distance = None
        if never_saw:
            inside = representation(task, samples, models, seed=seed)
            distance = to_retraining(metrics, predictions, inside, seed=seed, resamples=effort.resamples)
        sample_hashes = tuple(sample_hash(samples, place, key) for place in range(len(gone)))
        train_hash = task.fingerprint.ordered
    return Audit(
        ids=tuple(gone.tolist()),
        keys=None if done is None else done.keys,
        earlier=tuple(earlier.tolist()),
        sample_hashes=sample_hashes,
        kind=measurer.scope.kind,
        classes=measurer.scope.classes,
        metric=measurer.utility_name,
        original=metrics[0],
        unlearned=metrics[1],
        retrained=tuple(metrics[2:]),
        to_retraining=distance,
        near_duplicates=alike,
        change=change,
        losses={name: losses_to_plot(found) for name, found in zip(names, predictions, strict=True)},
        train_hash=train_hash,
        seed=seed,
        elsewhere=elsewhere,
        hash_key=key,
    )


def _spelled_out(
    task: Task, original: nn.Module | Forgotten, unlearned: nn.Module | Forgotten | None, forget: Ids | None
) -> tuple[nn.Module | Forgotten, nn.Module | Forgotten, Ids]:
    """The model before, the model after and the samples, where an unlearner's answer says all of it."""
    if isinstance(original, Forgotten) and unlearned is None:
        before = task.model if original.before is None else original.before
        return before, original, original.ids if forget is None else forget
    if unlearned is None or forget is None:
        missing = "unlearned" if unlearned is None else "forget"
        raise InputError(
            f"{missing} is missing: pass the model before, the model after and the forgotten samples, or only what "
            "Unlearner.forget gave, as in audit(task, done)."
        )
    return original, unlearned, forget


def _given(retrained: Any) -> list[nn.Module]:
    """The models that were given as retrained ones; whether all are models is checked where they are used."""
    if isinstance(retrained, nn.Module):
        return [retrained]
    return [one for one in retrained if isinstance(one, nn.Module)] if isinstance(retrained, list | tuple) else []


def _earlier(task: Task, gone: Tensor, forgotten: Ids, done: Forgotten | None) -> Tensor:
    """What was forgotten before this request: as is said, or else as the outcome knows."""
    known = {int(one) for one in (forgotten if len(forgotten) or done is None else done.forgotten)}
    others = sorted(known - set(gone.tolist()))
    return positions(others, len(task.train_set)) if others else gone[:0]
