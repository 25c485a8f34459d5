"""What an audit means, in words: a verdict and the findings that it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from excise.evidence.attacks import RatioAttack
from excise.evidence.gap import Gap
from excise.evidence.thresholds import USUAL, Thresholds
from excise.evidence.to_retraining import ToRetraining

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

Level = Literal["good", "warning", "bad", "note"]
Outcome = Literal["forgotten", "mostly forgotten", "partly forgotten", "not forgotten", "damaged", "undecided"]

ATTACKS = ("Membership attack", "Attack sample by sample")  # titles of findings that the outcome depends on
USEFUL, HIDDEN = "Use of the model", "Hidden or forgotten"
SIDES = ("retain", "test")
TINY = 1e-12
LOWER_IS_BETTER = ("rmse",)
_LEVELS: dict[Outcome, Level] = {"forgotten": "good", "partly forgotten": "warning", "not forgotten": "bad"}


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    level: Level
    title: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The outcome, in one sentence, and why."""

    outcome: Outcome
    sentence: str
    findings: tuple[Finding, ...]


def verdict(audit: Audit, thresholds: Thresholds = USUAL) -> Verdict:
    """Weigh the figures of an audit; ``Audit.verdict`` is by the usual thresholds."""
    compared = audit.to_retraining
    outcome, forgetting = (
        _against_held_out(audit) if compared is None else _against_retraining(audit, compared, thresholds)
    )
    findings = [
        forgetting,
        *_membership(audit, thresholds),
        *_usefulness(audit, thresholds),
        *_few_shot(audit, thresholds),
        *_relearning(audit, thresholds),
        *_near_duplicates(audit),
        *_few(audit, thresholds),
        *_guarantee(audit),
    ]
    if audit.original.model_hash == audit.unlearned.model_hash:
        text = "The model after is the model before, weight by weight: nothing was done."
        findings.insert(0, Finding("bad", "Nothing was changed", text))
        outcome = "not forgotten"
    elif _is_another_model(audit, thresholds):
        text = (
            f"On retained samples the original's {audit.metric} is {audit.original.retain.value:.3f}, the unlearned "
            f"model's {audit.unlearned.retain.value:.3f}: the original is not the model that was trained on them, so "
            "nothing can be concluded. Pass the weights from before the deletion."
        )
        findings.insert(0, Finding("bad", "Another original", text))
        return Verdict("undecided", _sentence(audit, "undecided", thresholds), tuple(findings))
    bad = {one.title for one in findings if one.level == "bad"}
    if outcome == "forgotten" and any(one.title in ATTACKS and one.level == "warning" for one in findings):
        outcome = "mostly forgotten"
    if outcome in ("forgotten", "mostly forgotten") and HIDDEN in bad:
        outcome = "partly forgotten"
    if USEFUL in bad and (outcome != "not forgotten" or not _is_known(audit)):
        outcome = "damaged"
    return Verdict(outcome, _sentence(audit, outcome, thresholds), tuple(findings))


def _is_another_model(audit: Audit, thresholds: Thresholds) -> bool:
    """Whether the model after knows the retained samples much better than the one before: that is not forgetting."""
    gained = audit.unlearned.retain.value - audit.original.retain.value
    return audit.metric not in LOWER_IS_BETTER and gained > thresholds.implausible_accuracy_gained


def _is_known(audit: Audit) -> bool:
    """Whether the model does on the forgotten samples as the original, rather than as models that never saw them."""
    before, after = audit.original.forget.value, audit.unlearned.forget.value
    never = [one.forget.value for one in audit.retrained] or [audit.unlearned.test.value]
    return abs(after - before) < abs(after - float(np.mean(never)))


def _is_farther(audit: Audit, thresholds: Thresholds) -> bool:
    """Whether the model is farther from retraining than the original was."""
    if audit.to_retraining is None:
        return False
    gap = _gap(audit, audit.to_retraining, thresholds)
    return gap.model > gap.original


def _sentence(audit: Audit, outcome: Outcome, thresholds: Thresholds) -> str:
    what = f"{_count(len(audit.ids), 'sample')}"
    if outcome == "forgotten" and not audit.to_retraining:
        return f"The model treats the {what} like data it never saw; no retrained model was there to compare with."
    if outcome == "not forgotten" and _is_farther(audit, thresholds):
        return (
            f"The model has not forgotten the {what}: it is no nearer to a model that never saw them than the original."
        )
    return {
        "forgotten": f"The model has forgotten the {what}: it answers nearly as a model that never saw them.",
        "mostly forgotten": f"The model has mostly forgotten the {what}: its answers are near to those of a model that "
        "never saw them, but an attacker who has such models could still tell.",
        "partly forgotten": f"The model has forgotten the {what} in part: a trace of them is left.",
        "not forgotten": f"The model has not forgotten the {what}: it is nearer to the original than to a model that "
        "never saw them.",
        "damaged": f"The model no longer shows the {what}, but it does worse on other data than it should.",
        "undecided": f"Whether the model has forgotten the {what} can't be told from what was measured.",
    }[outcome]


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


def is_measurable(gap: Gap, thresholds: Thresholds = USUAL) -> bool:
    """Whether the original is so far from retrained models that these can be told from it (unknown counts as yes)."""
    return not gap.original <= thresholds.measurable_times_floor * max(gap.floor, TINY)


def _against_retraining(audit: Audit, compared: ToRetraining, thresholds: Thresholds) -> tuple[Outcome, Finding]:
    """On a scale from the original (1) to another retraining (0)."""
    title = "Distance to retraining"
    gap = _gap(audit, compared, thresholds)
    if math.isnan(gap.floor):
        left = gap.model / gap.original if gap.original else math.nan
        text = (
            f"Its answers to the forgotten samples are at {_percent(left)} of the original's distance to the "
            "retrained one. "
            if math.isfinite(left)
            else "The original answers the forgotten samples just as the retrained one. "
        ) + "With a single one it is not known how much two retrainings differ; retrain three times to see."
        near, far = left < thresholds.forgotten_share_left, left > thresholds.unchanged_share_of_distance
        outcome = _by_share(left, thresholds) if near or far else "undecided"
        return outcome, Finding("note", title, text)
    if not is_measurable(gap, thresholds):
        text = (
            "The original's answers to these samples are hardly farther from retrained models' than those are from "
            f"each other (divergence: original {gap.original:.3f}, unlearned {gap.model:.3f}, between retrainings "
            f"{gap.floor:.3f}). Either it had not learned them, or retrainings differ too much: more of them may tell."
        )
        return "undecided", Finding("warning", title, text)
    share = gap.share
    measure = (
        "with temperatures fitted, so that softer answers alone don't count. Divergence"
        if gap is compared.forget_calibrated
        else "by their standardised margins. Squared distance"
        if gap is compared.margins
        else "by their mean loss. Difference"
    )
    text = (
        f"{_percent(max(0.0, 1 - share))} of the way from the original to retraining is done (100 %: as near to a "
        "retrained model as another one is), measured on "
        f"{_count(len(audit.ids), 'forgotten sample')} {measure}: original {gap.original:.3f}, unlearned "
        f"{gap.model:.3f}, between {compared.models} retrainings {gap.floor:.3f}."
    )
    outcome = _by_share(share, thresholds)
    return outcome, Finding(_LEVELS[outcome], title, text)


def _by_share(share: float, thresholds: Thresholds) -> Outcome:
    if share <= thresholds.forgotten_share_left:
        return "forgotten"
    return "partly forgotten" if share <= thresholds.partly_share_left else "not forgotten"


def _against_held_out(audit: Audit) -> tuple[Outcome, Finding]:
    found = audit.unlearned.held_out
    title = "Against data never seen"
    text = (
        f"Mean loss of the forgotten samples {found.mean:.3f}, of held-out samples of the same classes "
        f"{found.held_out_mean:.3f} (difference {found.difference:+.3f}, 95 % interval {found.interval[0]:+.3f} to "
        f"{found.interval[1]:+.3f}; p = {found.p:.3f}). "
    )
    if found.verdict == "similar":
        if audit.original.held_out.verdict == "similar":
            text += "But the original's are as similar: these samples can't tell whether anything was forgotten."
            return "undecided", Finding("warning", title, text)
        return "forgotten", Finding("good", title, text + "They can't be told apart.")
    if found.verdict == "lower":
        text += "The model still knows them better than data it never saw."
        better = found.above > (audit.original.held_out.above + 0.5) / 2  # of ranks: softer answers don't change them
        return ("partly forgotten" if better else "not forgotten"), Finding("bad", title, text)
    text += (
        "It answers them worse than data it never saw, which gives them away as well, unless they were unusual "
        "(mislabelled, say): retrain to tell."
    )
    return "undecided", Finding("warning", title, text)


def _membership(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    mine = audit.unlearned.attacks["loss"]
    text = f"By their losses they can be told from data never seen with AUC {_interval(mine.auc, mine.interval)}"
    if not audit.retrained:
        return [Finding("note", ATTACKS[0], f"{text}. The target is a retrained model's value, not 0.5.")]
    retrained = [one.attacks["loss"] for one in audit.retrained]
    target = float(np.mean([one.auc for one in retrained]))
    lows, highs = zip(*(one.interval for one in retrained), strict=True)
    alike = mine.interval[0] <= float(np.mean(highs)) and mine.interval[1] >= float(np.mean(lows))
    text += f"; the target is not 0.5 but what a retrained model gets, {target:.2f}. "
    if mine.interval[1] - mine.interval[0] > thresholds.useless_interval_width_of_auc:
        found = [Finding("note", ATTACKS[0], text + "So few samples can't tell the one from the other.")]
    else:
        text += "The difference is within chance." if alike else "The difference is more than chance."
        found = [Finding("good" if alike else "warning", ATTACKS[0], text)]
    compared = audit.to_retraining
    if compared is not None and compared.ratio is not None:
        found.append(_ratio(compared.ratio, compared.models))
    return found


def _ratio(ratio: RatioAttack, models: int) -> Finding:
    known, changed = ratio.remembered, ratio.changed
    text = (
        f"Each sample against its own distribution over {models} retrained models: still known "
        f"better with AUC {_interval(known.auc, known.interval)}, unusual either way with "
        f"{_interval(changed.auc, changed.interval)}; 0.5 is what a retrained model gets here."
    )
    usual = max(0.5, *ratio.retrained_aucs)  # two trainings differ on all samples at once, which intervals don't know
    told = known.interval[0] > usual or changed.interval[0] > usual
    return Finding("warning" if told else "good", ATTACKS[1], text)


def _usefulness(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    mine = audit.unlearned
    base = audit.retrained or (audit.original,)
    words = "a retrained model" if audit.retrained else "the original"
    usual = [float(np.mean([getattr(one, group).value for one in base])) for group in SIDES]
    risen = [getattr(mine, group).value - value for group, value in zip(SIDES, usual, strict=True)]
    if audit.metric in LOWER_IS_BETTER:  # in any unit, so as a share
        risen = [up / max(value, TINY) for up, value in zip(risen, usual, strict=True)]
    lost = risen if audit.metric in LOWER_IS_BETTER else [-up for up in risen]
    by_chance = [_is_within(value, getattr(mine, group).interval) for group, value in zip(SIDES, usual, strict=True)]
    if audit.kind == "class" and not audit.retrained:  # the forgotten class is part of the test set
        lost = lost[:1]
    worst = float(np.nanmax([*lost, 0.0]))
    most = thresholds.damaging_accuracy_lost
    damaged = any(one > most and not chance for one, chance in zip(lost, by_chance, strict=False))
    level: Level = "bad" if damaged else "good" if worst <= thresholds.noticed_accuracy_lost else "warning"
    name = audit.metric.capitalize() if audit.metric.islower() else audit.metric
    signs = [f"{up:+.1%}" if audit.metric in LOWER_IS_BETTER else f"{up + 0.0:+.3f}" for up in risen]
    text = (
        f"{name} on retained samples {mine.retain.value:.3f} ({signs[0]} against {words}), "
        f"on test samples {mine.test.value:.3f} ({signs[1]})."
    )
    return [Finding(level, USEFUL, text)]


def _is_within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _few_shot(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    if audit.unlearned.few_shot is None or audit.original.few_shot is None:
        return []
    mine, before = audit.unlearned.few_shot, audit.original.few_shot
    text = (
        f"A linear classifier that gets {mine.shots} examples of each class finds the forgotten ones in "
        f"{_percent(mine.accuracy)} of the cases by the model's inner features (original "
        f"{_percent(before.accuracy)}, chance {_percent(mine.chance)}"
    )
    retrained = [one.few_shot.accuracy for one in audit.retrained if one.few_shot is not None]
    alike = thresholds.alike_few_shot_accuracy
    chance = max(alike, before.spread / math.sqrt(before.draws))
    if not retrained:
        hidden = mine.accuracy > before.accuracy - alike
        more = " They are hidden rather than forgotten." if hidden else ""
        return [Finding("bad" if hidden else "note", HIDDEN, f"{text}).{more}")]
    target = float(np.mean(retrained))
    text += f", retrained {_percent(target)})."
    between = float(np.std(retrained, ddof=1)) if len(retrained) > 1 else thresholds.assumed_few_shot_deviation
    if before.accuracy - target <= max(chance, thresholds.telling_few_shot_deviations * between):
        more = " Retrained models know them hardly less than the original, so this says little."
        return [Finding("note", HIDDEN, text + more)]
    left = (mine.accuracy - target) / (before.accuracy - target)
    level = _LEVELS[_by_share(left, thresholds)]
    more = " It is hidden in the outputs rather than forgotten." if level == "bad" else ""
    return [Finding(level, HIDDEN, text + more)]


def _relearning(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    def steps(found: int | None, most: int) -> str:
        return f"more than {most}" if found is None else str(found)

    mine = audit.unlearned.relearning
    most = len(mine.losses) - 1
    text = f"Learning the samples again to the original's loss takes {steps(mine.steps, most)} steps"
    if not audit.retrained:
        return [Finding("note", "Learning again", text + "; compare it with a retrained model's.")]
    retrained = [one.relearning.steps for one in audit.retrained]
    limit = max(len(one.relearning.losses) - 1 for one in audit.retrained)
    typical = float(np.median([math.inf if one is None else one for one in retrained]))
    words = f"more than {limit}" if math.isinf(typical) else f"{typical:.0f}"
    own = math.inf if mine.steps is None else mine.steps
    if mine.losses[0] < thresholds.negligible_mean_loss:
        words += "; but its loss on them is next to nothing to begin with, so this says little."
        return [Finding("note", "Learning again", f"{text}, a retrained model {words}")]
    quick = own < thresholds.quick_share_of_steps * min(typical, limit)
    end = "So a trace is left that helps." if quick else "So nothing much is left that helps."
    return [Finding("warning" if quick else "good", "Learning again", f"{text}, a retrained model {words}. {end}")]


def _near_duplicates(audit: Audit) -> list[Finding]:
    pairs = audit.near_duplicates
    if not pairs:
        return []
    of = sorted({one.forgotten for one in pairs})
    exact = sum(one.exact for one in pairs)
    text = (
        f"{_count(len(of), 'forgotten sample')} ({', '.join(map(str, of[:8]))}{', …' if len(of) > 8 else ''}) "
        f"{'have' if len(of) > 1 else 'has'} near-duplicates among the retained ones ({len(pairs)} in all, {exact} "
        "exact): the model goes on learning from these. Decide whether they belong to the request."
    )
    return [Finding("bad" if exact else "warning", "Near-duplicates are still there", text)]


def _few(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    if len(audit.ids) > thresholds.few_samples:
        return []
    text = (
        f"With {_count(len(audit.ids), 'forgotten sample')} every figure is uncertain; the intervals say how much. "
        "Attacks that tell hundreds of samples apart can't be ruled out or in by so few."
    )
    return [Finding("note", "Few samples", text)]


def _guarantee(audit: Audit) -> list[Finding]:
    if audit.change.certificate is None:
        return []
    certificate = audit.change.certificate
    if certificate.bound is None:
        text = "Nothing is proven about the weights; what is known is what was measured here."
    else:
        text = f"Proven: the weights are at most {certificate.bound:.3g} away from those of exact retraining."
        if certificate.last_layer_only:
            text = (
                f"Proven: the weights of the last layer are at most {certificate.bound:.3g} away from those of exact "
                "retraining of that layer alone. The parts before it may have been trained on the forgotten samples."
            )
    return [Finding("note", "Guarantee", text)]


def _interval(value: float, bounds: tuple[float, float]) -> str:
    return f"{value:.2f} (95 % interval {bounds[0]:.2f} to {bounds[1]:.2f})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
