"""How far an unlearned model is from retrained ones, by every measure of the field, each beside its noise floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError
from excise.evidence.attacks import RatioAttack, likelihood_ratio_attack, margin
from excise.evidence.deviation import FEWEST_MODELS, Deviations, deviations
from excise.evidence.evaluation import GroupPredictions
from excise.evidence.gap import Gap, average_gap, divergence_gap, margin_gap, tug_of_war
from excise.evidence.model_metrics import ModelMetrics
from excise.evidence.representation import Representation


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
    deviations: Deviations | None
    """How far the answers to forgotten, retained and test samples lie from retrained models', in units of the spread
    between these; of three or more."""
    representation: Representation | None = None
    """How far inner features are from retrained models'; None where the network has no layers to look into."""


def to_retraining(
    metrics: Sequence[ModelMetrics],
    predictions: Sequence[GroupPredictions],
    representation: Representation | None,
    *,
    seed: int,
    resamples: int = 1000,
) -> ToRetraining:
    """Hold the second of the models against all from the third on, which were retrained; the first is the original."""
    _, unlearned, *retrained = metrics
    pairs = list(permutations(retrained, 2))
    has_classes = unlearned.forget.metric != "rmse"
    before, after, *others = (one.scores(numbers=not has_classes) for one in predictions)
    return ToRetraining(
        models=len(retrained),
        average_gap=_mean([average_gap(unlearned.summary, one.summary) for one in retrained]),
        average_gap_floor=_mean([average_gap(a.summary, b.summary) for a, b in pairs]),
        tug_of_war=_mean([tug_of_war(unlearned.shares, one.shares) for one in retrained]),
        tug_of_war_floor=_mean([tug_of_war(a.shares, b.shares) for a, b in pairs]),
        deviations=deviations(before, after, others),
        representation=representation,
        ratio=_ratio(predictions, seed, resamples) if has_classes else None,
        **(_gaps(predictions) if has_classes else dict.fromkeys(GAPS)),
    )


GAPS = ("forget", "forget_calibrated", "test", "test_calibrated", "margins")


def _gaps(predictions: Sequence[GroupPredictions]) -> dict[str, Gap | None]:
    original, unlearned, *retrained = (one.logits for one in predictions)
    given = unlearned, original, retrained
    return {
        "forget": divergence_gap(*given, calibrated=False),
        "forget_calibrated": divergence_gap(*given, calibrated=True),
        "test": divergence_gap(*given, calibrated=False, on="held_out"),
        "test_calibrated": divergence_gap(*given, calibrated=True, on="held_out"),
        "margins": margin_gap(*given, *predictions[0].labels),
    }


def _ratio(predictions: Sequence[GroupPredictions], seed: int, resamples: int) -> RatioAttack | None:
    """None with too few models, or with several labels a sample, and where retrained models agree."""
    labels, _ = predictions[0].labels
    one_row_a_sample = len(labels) == len(predictions[0].forget)
    if len(predictions) - 2 < FEWEST_MODELS or not one_row_a_sample:
        return None
    margins: list[NDArray[np.float64]] = [margin(one.logits.forget, labels) for one in predictions[1:]]
    try:
        return likelihood_ratio_attack(margins[0], np.array(margins[1:]), seed=seed, resamples=resamples)
    except InputError:  # retrained models that agree, as where training has one outcome, have no spread to measure by
        return None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
