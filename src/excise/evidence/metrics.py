"""What is measured of a model, and how each figure is called: the one list that audit, text, page and JSON read.

To add an attack, write a score of predictions, higher for what looks more like training data, and decorate it::

    @attack("top probability", title="Attack by the first guess", words="The same by how likely the first guess is.")
    def by_top_probability(said: Predictions) -> Floats:
        return softmax(said.outputs, axis=1).max(axis=1)

Every audit from then on runs it on every model, and shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from excise._support.checks import choice
from excise.errors import InputError
from excise.evidence.attacks import confidence, entropy_score, loss_score, modified_entropy_score
from excise.task.predictions import Predictions

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit
    from excise.evidence.gap import Gap
    from excise.evidence.model_metrics import ModelMetrics


Floats = NDArray[np.float64]
Score = Callable[[Predictions], Floats]
Kind = Literal["value", "share", "number", "steps"]
Group = Literal[
    "How well it answers",
    "How wrong or unsure it is (loss)",
    "Can an attacker tell that they were in the training data?",
    "Can it be brought back?",
    "How far from a model that never saw them? (divergence)",
    "How far, in units of the spread between such models? (|z|)",
    "How far inside? (features)",
]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True)
class Metric:
    """A figure of every model: what it is, and how it is called and written."""

    name: str
    """In the record, no other metric's; ``{metric}`` stands for what answers are scored by, such as accuracy."""
    of: Callable[[ModelMetrics, Audit], float]
    """The figure of a model; NaN where there is none."""
    title: str
    """On the page."""
    words: str
    """What it says, for everybody."""
    group: Group
    kind: Kind = "number"
    """How it is written: ``"value"`` as what answers are scored by, ``"share"`` in percent."""
    label: str | None = None
    """In a terminal, where that differs from the name."""


@dataclass(frozen=True)
class AttackScore:
    """What an attack looks at."""

    name: str
    score: Score
    needs: Literal["anything", "classes"]
    """Which tasks it can be run for."""


@dataclass(frozen=True)
class Row:
    """A metric of all models of an audit."""

    metric: Metric
    values: dict[str, list[float]]
    """Of the original, the unlearned and, where there are any, the retrained models."""


METRICS: dict[str, Metric] = {}
ATTACKS: dict[str, AttackScore] = {}


def show(*metrics: Metric) -> None:
    """Show metrics in every audit from now on."""
    for metric in metrics:
        if metric.name in METRICS:
            raise InputError(f"metric {metric.name!r} is there already; choose another name.")
        METRICS[metric.name] = metric


def attack(
    name: str, *, title: str, words: str, needs: Literal["anything", "classes"] = "classes"
) -> Callable[[Score], Score]:
    """Run a score as a membership attack in every audit from now on; see the module's first lines."""

    def register(score: Score) -> Score:
        show(Metric(f"attack by {name}, AUC", lambda one, _: attack_auc(one, name), title, words, GROUPS[2]))
        ATTACKS[name] = AttackScore(name, score, needs)
        return score

    return register


def chosen_attacks(names: Sequence[str] | None, *, has_classes: bool) -> tuple[AttackScore, ...]:
    """The attacks with these names, and always that by loss, which the verdict rests on; None for all that apply."""
    applicable = [one for one in ATTACKS.values() if has_classes or one.needs == "anything"]
    if names is None:
        return tuple(applicable)
    wanted = {choice(name, tuple(ATTACKS), "attacks") for name in ([names] if isinstance(names, str) else names)}
    for one in sorted(wanted - {one.name for one in applicable}):
        raise InputError(f"attacks has {one!r}, which needs targets that are one class each; leave it out.")
    return tuple(one for one in applicable if one.name in wanted | {"loss"})


def rows_of(audit: Audit) -> list[Row]:
    """All metrics that some model of the audit has, group by group."""
    columns: dict[str, Sequence[ModelMetrics]] = {"original": (audit.original,), "unlearned": (audit.unlearned,)}
    if audit.retrained:
        columns["retrained"] = audit.retrained
    ordered = sorted(METRICS.values(), key=lambda metric: GROUPS.index(metric.group))
    rows = [
        Row(one, {name: [float(one.of(model, audit)) for model in models] for name, models in columns.items()})
        for one in ordered
    ]
    return [row for row in rows if not all(math.isnan(value) for values in row.values.values() for value in values)]


def attack_auc(one: ModelMetrics, name: str) -> float:
    """AUC of an attack; NaN where it was not run."""
    return one.attacks[name].auc if name in one.attacks else math.nan


def steps_allowed(audit: Audit) -> int:
    """Steps after which learning again was given up, if any model got so far."""
    return max(len(one.relearning.losses) for one in audit.models) - 1


def _divergence(name: str) -> Callable[[ModelMetrics, Audit], float]:
    """The unlearned and the original model's distance to the retrained ones; of these, to each other."""

    def of(one: ModelMetrics, audit: Audit) -> float:
        gap = getattr(audit.to_retraining, name, None)
        return math.nan if gap is None else _side(one, gap)

    return of


def _deviation(name: str) -> Callable[[ModelMetrics, Audit], float]:
    """Mean |z| (or z) of a model; of a retrained one, against the others."""

    def of(one: ModelMetrics, audit: Audit) -> float:
        compared = audit.to_retraining
        if compared is None or compared.deviations is None:
            return math.nan
        found = getattr(compared.deviations, name)
        each = {"original": found.original, "unlearned": found.unlearned}
        names = [model.name for model in audit.retrained]
        return float((each | dict(zip(names, found.retrained, strict=True)))[one.name])

    return of


def _features(name: str) -> Callable[[ModelMetrics, Audit], float]:
    """Mean distance of a model's inner features to the retrained models'."""

    def of(one: ModelMetrics, audit: Audit) -> float:
        inside = None if audit.to_retraining is None else audit.to_retraining.representation
        gap = getattr(inside, name, None)
        return math.nan if gap is None else _side(one, gap)

    return of


def _side(one: ModelMetrics, gap: Gap) -> float:
    """Of the original and the unlearned model the distance to retrained ones, of these to each other."""
    return {"original": gap.original, "unlearned": gap.model}.get(one.name, gap.floor)


def _few_shot_accuracy(one: ModelMetrics, _: Audit) -> float:
    return one.few_shot.accuracy if one.few_shot is not None else math.nan


def _relearning_steps(one: ModelMetrics, _: Audit) -> float:
    """Infinite where the steps were not enough."""
    return math.inf if one.relearning.steps is None else float(one.relearning.steps)


# --- what is shown, in this order ------------------------------------------------------------------------------------

ANSWERS, LOSSES, MEMBERSHIP, RETURN, DISTANCE, DEVIATION, FEATURES = GROUPS

show(
    Metric(
        "{metric}, forgotten",
        lambda one, _: one.forget.value,
        "{metric} on the forgotten samples",
        "Where the model knew these samples by heart, it should come down to what retrained models reach.",
        ANSWERS,
        "value",
    ),
    Metric(
        "{metric}, retained",
        lambda one, _: one.retain.value,
        "{metric} on the retained samples",
        "All other training data: it should stay as good as before.",
        ANSWERS,
        "value",
    ),
    Metric(
        "{metric}, test",
        lambda one, _: one.test.value,
        "{metric} on test samples",
        "New data: whether the model is as useful as before.",
        ANSWERS,
        "value",
    ),
    Metric(
        "loss, forgotten",
        lambda one, _: one.forget.loss,
        "Loss on the forgotten samples",
        "Low: still known. The target is retrained.",
        LOSSES,
    ),
    Metric(
        "loss, retained",
        lambda one, _: one.retain.loss,
        "Loss on the retained samples",
        "Should stay low.",
        LOSSES,
    ),
    Metric(
        "loss, test",
        lambda one, _: one.test.loss,
        "Loss on test samples",
        "Should stay where it was.",
        LOSSES,
    ),
)


@attack(
    "loss",
    title="Attack by loss",
    words="Chance that a forgotten sample looks more like training data than a new one; 0.5 is a coin toss.",
    needs="anything",
)
def by_loss(said: Predictions) -> Floats:
    """Training samples tend to have small losses."""
    return loss_score(said.losses)


show(
    Metric(
        "attack by loss, true positives at 1 % false",
        lambda one, _: one.attacks["loss"].tpr_at_fpr,
        "Found at 1 % false alarms",
        "Share of the forgotten samples that a careful attacker would point out.",
        MEMBERSHIP,
        "share",
        label="  true positives at 1 % false",
    ),
)


@attack("confidence", title="Attack by confidence", words="The same by how likely the right answer is to the model.")
def by_confidence(said: Predictions) -> Floats:
    """The probability of the true class."""
    return confidence(said.outputs, said.targets)


@attack("entropy", title="Attack by certainty", words="The same by how sure the model is.")
def by_entropy(said: Predictions) -> Floats:
    """How sure the model is, whether right or wrong."""
    return entropy_score(said.outputs)


@attack(
    "modified entropy",
    title="Attack by certainty and label",
    words="The same by how sure it is of the right answer.",
)
def by_modified_entropy(said: Predictions) -> Floats:
    """How sure the model is of the true class."""
    return modified_entropy_score(said.outputs, said.targets)


show(
    Metric(
        "few-shot probe",
        _few_shot_accuracy,
        "Found again from a few examples",
        "Shown a handful of examples, how often the model's inner features give the forgotten class away.",
        RETURN,
        "share",
    ),
    Metric(
        "steps to learn again",
        _relearning_steps,
        "Steps to learn them again",
        "Much fewer than retrained models need would mean that a trace is left.",
        RETURN,
        "steps",
    ),
    Metric(
        "divergence to retrained, forgotten",
        _divergence("forget"),
        "On the forgotten samples",
        "How different the answers are from retrained models'; under “retrained”: from each other.",
        DISTANCE,
    ),
    Metric(
        "divergence to retrained, forgotten, temperature fitted",
        _divergence("forget_calibrated"),
        "The same, temperature fitted",
        "Predictions that are merely less sure don't count as forgetting here.",
        DISTANCE,
        label="  temperature fitted",
    ),
    Metric(
        "divergence to retrained, test",
        _divergence("test"),
        "On test samples",
        "The same for new data.",
        DISTANCE,
    ),
    Metric(
        "divergence to retrained, test, temperature fitted",
        _divergence("test_calibrated"),
        "The same, temperature fitted",
        "The same, with the certainty of answers evened out.",
        DISTANCE,
        label="  temperature fitted",
    ),
    Metric(
        "|z| to retrained, forgotten",
        _deviation("forget"),
        "On the forgotten samples",
        "How far the answers lie from retrained models', in units of how much these scatter; should come down to "
        "theirs.",
        DEVIATION,
    ),
    Metric(
        "z to retrained, forgotten",
        _deviation("forget_signed"),
        "The same, with its sign",
        "Above 0: still known better than to retrained models. Below 0: answered worse, which is too much.",
        DEVIATION,
        label="  with its sign",
    ),
    Metric(
        "|z| to retrained, retained",
        _deviation("retain"),
        "On retained samples",
        "Should not rise above the original's: nothing was to be forgotten here.",
        DEVIATION,
    ),
    Metric(
        "|z| to retrained, test",
        _deviation("test"),
        "On test samples",
        "The same for new data.",
        DEVIATION,
    ),
    Metric(
        "1 - CKA to retrained, forgotten",
        _features("forget"),
        "On the forgotten samples",
        "How different the inner features are from retrained models', layer by layer on average; under “retrained”: "
        "from each other.",
        FEATURES,
    ),
    Metric(
        "1 - CKA to retrained, test",
        _features("test"),
        "On test samples",
        "The same for new data.",
        FEATURES,
    ),
)
