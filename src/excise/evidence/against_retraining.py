"""How far from retraining, in words: the way done on the forgotten samples, what else was moved, and what is inside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from excise.evidence.deviation import Deviation, Deviations
from excise.evidence.gap import Gap
from excise.evidence.outcomes import LEVELS, Finding, Outcome, counted, percent
from excise.evidence.representation import Representation
from excise.evidence.thresholds import USUAL, Thresholds
from excise.evidence.to_retraining import ToRetraining

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

DISTANCE, FORGOTTEN, OTHERS, INSIDE = (
    "Distance to retraining",
    "Deviation of the forgotten samples",
    "Deviation of other samples",
    "Inner features",
)
TINY = 1e-12


@dataclass(frozen=True)
class Weighed:
    """What the distances to retrained models come to."""

    outcome: Outcome
    """By what is left of the way, in the eyes of all that can be measured."""
    findings: tuple[Finding, ...]
    by_answers: Outcome
    """By the divergence alone, which a common change of certainty does not touch."""
    astray: Outcome | None = None
    """``overshot`` or ``moved``, where one of them is found."""
    still_known: bool = False
    """Whether the samples are clearly known better than to retrained models, whatever else was moved."""


def weigh(audit: Audit, compared: ToRetraining, thresholds: Thresholds) -> Weighed:
    """Weigh every distance to retrained models that was measured."""
    by_answers, finding = _by_divergence(audit, compared, thresholds)
    findings, outcomes, astray, known = [finding], [by_answers], None, False
    found = compared.deviations
    if found is not None:
        outcome, finding = by_deviation(found, compared.models, thresholds)
        outcomes.append(outcome)
        findings += [finding, _of_others(found, compared.models, thresholds)]
        astray = _astray(found, thresholds)
        known = _still_known(found.forget_signed, thresholds)
    if compared.representation is not None:
        findings.append(_inside(compared.representation, thresholds))
    return Weighed(_together(outcomes), tuple(findings), by_answers, astray, known)


def _together(outcomes: list[Outcome]) -> Outcome:
    """What measures say together that can tell anything: where they disagree, a part is gone and a part is left."""
    measured = {one for one in outcomes if one != "undecided"}
    if len(measured) > 1:
        return "partly forgotten"
    return measured.pop() if measured else "undecided"


def by_share(share: float, thresholds: Thresholds) -> Outcome:
    """The outcome by what is left of the way."""
    if share <= thresholds.forgotten_share_left:
        return "forgotten"
    return "partly forgotten" if share <= thresholds.partly_share_left else "not forgotten"


def is_measurable(gap: Gap, thresholds: Thresholds = USUAL) -> bool:
    """Whether the original is so far from retrained models that these can be told from it (unknown counts as yes)."""
    return not gap.original <= thresholds.measurable_times_floor * max(gap.floor, TINY)


def is_moved(found: Deviation, thresholds: Thresholds = USUAL) -> bool:
    """Whether answers lie farther from retrained models' than the original's and than these from each other."""
    return found.beyond_usual > thresholds.moved_times_usual


def is_overshot(signed: Deviation, thresholds: Thresholds = USUAL) -> bool:
    """Whether samples are answered worse than by the original and by every retrained model, by more than chance."""
    chance = thresholds.overshot_standard_errors / math.sqrt(signed.samples)
    return signed.unlearned < min(signed.original, *signed.retrained) - max(thresholds.overshot_mean_z, chance)


def is_nearer(audit: Audit, compared: ToRetraining, thresholds: Thresholds) -> bool:
    """Whether the model is nearer to retraining than the original was."""
    gap = _gap(audit, compared, thresholds)
    return not gap.model > gap.original


def _astray(found: Deviations, thresholds: Thresholds) -> Outcome | None:
    """Whether the model went past retraining or took others along; where both, what the forgotten samples show more."""
    others = [one for one in (found.retain, found.test) if is_moved(one, thresholds)]
    if is_overshot(found.forget_signed, thresholds):
        return "overshot" if all(found.forget.unlearned > one.unlearned for one in others) else "moved"
    return "moved" if others else None


def _gap(audit: Audit, compared: ToRetraining, thresholds: Thresholds) -> Gap:
    """The calibrated divergence to retrained models; where that is lost in noise, the distance of margins.

    Where numbers are predicted, it is the difference of mean losses.
    """
    calibrated, margins = compared.forget_calibrated, compared.margins
    if calibrated is not None:
        lost = not is_measurable(calibrated, thresholds)
        return margins if lost and margins is not None and is_measurable(margins, thresholds) else calibrated
    losses = np.array([one.forget.loss for one in audit.retrained])
    target = float(losses.mean())
    # a retrained model is compared with the mean of the others, as the model is with the mean of all
    floor = float(np.mean(np.abs(losses - target))) * len(losses) / (len(losses) - 1) if len(losses) > 1 else math.nan
    return Gap(abs(audit.unlearned.forget.loss - target), abs(audit.original.forget.loss - target), floor)


def _by_divergence(audit: Audit, compared: ToRetraining, thresholds: Thresholds) -> tuple[Outcome, Finding]:
    """On a scale from the original (1) to another retraining (0)."""
    gap = _gap(audit, compared, thresholds)
    if math.isnan(gap.floor):
        left = gap.model / gap.original if gap.original else math.nan
        text = (
            f"Its answers to the forgotten samples are at {percent(left)} of the original's distance to the "
            "retrained one. "
            if math.isfinite(left)
            else "The original answers the forgotten samples just as the retrained one. "
        ) + "With a single one it is not known how much two retrainings differ; retrain three times to see."
        near, far = left < thresholds.forgotten_share_left, left > thresholds.unchanged_share_of_distance
        outcome = by_share(left, thresholds) if near or far else "undecided"
        return outcome, Finding("note", DISTANCE, text)
    if not is_measurable(gap, thresholds):
        text = (
            "The original's answers to these samples are hardly farther from retrained models' than those are from "
            f"each other (divergence: original {gap.original:.3f}, unlearned {gap.model:.3f}, between retrainings "
            f"{gap.floor:.3f}). Either it had not learned them, or retrainings differ too much: more of them may tell."
        )
        return "undecided", Finding("warning", DISTANCE, text)
    share = gap.share
    measure = (
        "with temperatures fitted, so that softer answers alone don't count. Divergence"
        if gap is compared.forget_calibrated
        else "by their standardised margins. Squared distance"
        if gap is compared.margins
        else "by their mean loss. Difference"
    )
    text = (
        f"{percent(max(0.0, 1 - share))} of the way from the original to retraining is done (100 %: as near to a "
        "retrained model as another one is), measured on "
        f"{counted(len(audit.ids), 'forgotten sample')} {measure}: original {gap.original:.3f}, unlearned "
        f"{gap.model:.3f}, between {compared.models} retrainings {gap.floor:.3f}."
    )
    outcome = by_share(share, thresholds)
    return outcome, Finding(LEVELS[outcome], DISTANCE, text)


def by_deviation(found: Deviations, models: int, thresholds: Thresholds) -> tuple[Outcome, Finding]:
    """By |z|, and by z with its sign, which sees a common trace in many samples through their noise."""
    size, signed = found.forget, found.forget_signed
    text = (
        f"Each answer in units of its own spread over {models} retrained models: |z| is {size.unlearned:.2f} on "
        f"average (original {size.original:.2f}, a retrained model {size.floor:.2f}, from {min(size.retrained):.2f} to "
        f"{max(size.retrained):.2f}), and z with its sign, above 0 for known better, {signed.unlearned:+.2f} (original "
        f"{signed.original:+.2f}, retrained from {min(signed.retrained):+.2f} to {max(signed.retrained):+.2f}). "
    )
    if is_overshot(signed, thresholds):
        text += "The samples are answered worse than by models that never saw them."
        return "undecided", Finding("bad", FORGOTTEN, text)
    shares = []
    if is_measurable(size.gap, thresholds) and size.original > max(size.retrained):
        shares.append(size.gap.share)
    if _is_known(signed, thresholds):
        shares.append(signed.gap.share)
    if not shares:
        text += "The original's differ hardly more than a retrained model's, so this tells little."
        return "undecided", Finding("note", FORGOTTEN, text)
    left = max(shares)
    text += f"{percent(max(0.0, left))} of the original's deviation is left."
    outcome = by_share(left, thresholds)
    return outcome, Finding(LEVELS[outcome], FORGOTTEN, text)


def _is_known(signed: Deviation, thresholds: Thresholds) -> bool:
    """Whether the original knows the samples better than every retrained model, by more than chance."""
    chance = max(float(np.std(signed.retrained, ddof=1)), 1 / math.sqrt(signed.samples))
    return signed.original > max(*signed.retrained, thresholds.telling_mean_z_standard_errors * chance)


def _still_known(signed: Deviation, thresholds: Thresholds) -> bool:
    return _is_known(signed, thresholds) and signed.gap.share > thresholds.forgotten_share_left


def _of_others(found: Deviations, models: int, thresholds: Thresholds) -> Finding:
    """Whether answers to retained and test samples are where they were."""
    groups = {"retained": found.retain, "test": found.test}
    figures = "; ".join(
        f"on {name} samples {one.unlearned:.2f} (original {one.original:.2f}, a retrained model {one.floor:.2f}, from "
        f"{min(one.retrained):.2f} to {max(one.retrained):.2f})"
        for name, one in groups.items()
    )
    text = f"|z| over {models} retrained models, {figures}. "
    if any(is_moved(one, thresholds) for one in groups.values()):
        text += "More was moved than what was to be forgotten."
        return Finding("bad", OTHERS, text)
    return Finding("good", OTHERS, text + "What was not to be forgotten is answered no more oddly than before.")


def _inside(found: Representation, thresholds: Thresholds) -> Finding:
    """Whether inner features are still the original's."""
    gap, samples = (found.test, "test") if found.forget is None else (found.forget, "forgotten")
    layers = counted(len(found.layers), "layer")
    text = (
        f"Distance of the inner features to retrained models' (1 − CKA, mean over {layers}) on {samples} samples: "
        f"original {gap.original:.3f}, unlearned {gap.model:.3f}"
    )
    text += f", between retrainings {gap.floor:.3f}. " if math.isfinite(gap.floor) else ". "
    if found.to_original <= thresholds.unmoved_feature_distance:
        text += (
            "The features are the original's in every layer: answers were changed at the output alone, and what the "
            "features hold of the samples is still there, hidden rather than forgotten."
        )
        return Finding("bad", INSIDE, text)
    if math.isnan(gap.floor) or not is_measurable(gap, thresholds):
        return Finding("note", INSIDE, text + "The original's differ hardly more, so this says little.")
    outcome = by_share(gap.share, thresholds)
    text += f"{percent(max(0.0, gap.share))} of the original's distance is left."
    if found.forget is not None and gap.share > thresholds.hidden_feature_share_left:
        text += " Whatever the answers say: what the features hold of the samples is still there."
        return Finding("bad", INSIDE, text)
    return Finding("good" if outcome == "forgotten" else "warning", INSIDE, text)
