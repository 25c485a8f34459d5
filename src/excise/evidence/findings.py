"""What single figures of an audit mean: attacks, use, probes, duplicates and guarantee, a finding each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from excise.evidence.against_retraining import by_share
from excise.evidence.attacks import Attack, RatioAttack
from excise.evidence.outcomes import LEVELS, Finding, Level, counted, percent, with_interval
from excise.evidence.thresholds import Thresholds

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

ATTACKS = ("Membership attack", "Attack sample by sample")  # titles of findings that the outcome depends on
USEFUL, HIDDEN = "Use of the model", "Hidden or forgotten"
SIDES = ("retain", "test")
TINY = 1e-12
LOWER_IS_BETTER = ("rmse",)


def membership(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    """What attackers can tell: by losses, and sample by sample with retrained models in their hands."""
    mine = audit.unlearned.attacks["loss"]
    text = f"By their losses they can be told from data never seen with AUC {with_interval(mine.auc, mine.interval)}"
    if not audit.retrained:
        return [Finding("note", ATTACKS[0], f"{text}. The target is a retrained model's value, not 0.5.")]
    found = [_beside_retrained(text, mine, [one.attacks["loss"].auc for one in audit.retrained], thresholds)]
    compared = audit.to_retraining
    if compared is not None and compared.ratio is not None:
        found.append(_ratio(compared.ratio, compared.models))
    return found


def _beside_retrained(text: str, mine: Attack, retrained: list[float], thresholds: Thresholds) -> Finding:
    """The difference to retrained models is within chance only where the interval holds their mean."""
    target = float(np.mean(retrained))
    text += f"; the target is not 0.5 but what a retrained model gets, {target:.2f}"
    text += f" (from {min(retrained):.2f} to {max(retrained):.2f}). " if len(retrained) > 1 else ". "
    if mine.interval[1] - mine.interval[0] > thresholds.useless_interval_width_of_auc:
        return Finding("note", ATTACKS[0], text + "So few samples can't tell the one from the other.")
    # as the figures are written, so that words and figures agree
    if _is_within(round(target, 2), (round(mine.interval[0], 2), round(mine.interval[1], 2))):
        return Finding("good", ATTACKS[0], text + "The difference is within chance.")
    if _is_within(mine.auc, (min(retrained), max(retrained))):
        return Finding("good", ATTACKS[0], text + "Retrained models differ as much from each other.")
    return Finding("warning", ATTACKS[0], text + "The difference is more than chance.")


def _ratio(ratio: RatioAttack, models: int) -> Finding:
    # two trainings differ on all samples at once, which intervals don't know
    usual = [max(0.5, *aucs) for aucs in (ratio.retrained_aucs, ratio.retrained_changed_aucs)]
    attacks = (ratio.remembered, ratio.changed)
    known, changed = (with_interval(one.auc, one.interval) for one in attacks)
    text = (
        f"Each sample against its own distribution over {models} retrained models: still known better with AUC "
        f"{known}, unusual either way with {changed}. A retrained model gets 0.5 on average, and here up to "
        f"{usual[0]:.2f} and {usual[1]:.2f}. "
    )
    told = any(one.interval[0] > most for one, most in zip(attacks, usual, strict=True))
    if told:
        return Finding("warning", ATTACKS[1], text + "So the samples can be told.")
    within = all(one.auc <= most or one.interval[0] <= 0.5 for one, most in zip(attacks, usual, strict=True))
    end = "That is within chance." if within else "So few samples or models can't tell whether that is chance."
    return Finding("good" if within else "note", ATTACKS[1], text + end)


def usefulness(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    """Whether it answers retained and test samples as well as it should."""
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


def few_shot(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    """Whether a few examples bring a class back."""
    if audit.unlearned.few_shot is None or audit.original.few_shot is None:
        return []
    mine, before = audit.unlearned.few_shot, audit.original.few_shot
    text = (
        f"A linear classifier that gets {mine.shots} examples of each class finds the forgotten ones in "
        f"{percent(mine.accuracy)} of the cases by the model's inner features (original "
        f"{percent(before.accuracy)}, chance {percent(mine.chance)}"
    )
    retrained = [one.few_shot.accuracy for one in audit.retrained if one.few_shot is not None]
    alike = thresholds.alike_few_shot_accuracy
    chance = max(alike, before.spread / math.sqrt(before.draws))
    if not retrained:
        hidden = mine.accuracy > before.accuracy - alike
        more = " They are hidden rather than forgotten." if hidden else ""
        return [Finding("bad" if hidden else "note", HIDDEN, f"{text}).{more}")]
    target = float(np.mean(retrained))
    text += f", retrained {percent(target)})."
    between = float(np.std(retrained, ddof=1)) if len(retrained) > 1 else thresholds.assumed_few_shot_deviation
    if before.accuracy - target <= max(chance, thresholds.telling_few_shot_deviations * between):
        more = " Retrained models know them hardly less than the original, so this says little."
        return [Finding("note", HIDDEN, text + more)]
    left = (mine.accuracy - target) / (before.accuracy - target)
    level = LEVELS[by_share(left, thresholds)]
    more = " It is hidden in the outputs rather than forgotten." if level == "bad" else ""
    return [Finding(level, HIDDEN, text + more)]


def relearning(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    """Whether the samples are learned again faster than by a model that never saw them."""

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


def near_duplicates(audit: Audit) -> list[Finding]:
    """Whether nearly the same samples are still trained on."""
    pairs = audit.near_duplicates
    if not pairs:
        return []
    of = sorted({one.forgotten for one in pairs})
    exact = sum(one.exact for one in pairs)
    text = (
        f"{counted(len(of), 'forgotten sample')} ({', '.join(map(str, of[:8]))}{', …' if len(of) > 8 else ''}) "
        f"{'have' if len(of) > 1 else 'has'} near-duplicates among the retained ones ({len(pairs)} in all, {exact} "
        "exact): the model goes on learning from these. Decide whether they belong to the request."
    )
    return [Finding("bad" if exact else "warning", "Near-duplicates are still there", text)]


def few(audit: Audit, thresholds: Thresholds) -> list[Finding]:
    """That few samples tell little."""
    if len(audit.ids) > thresholds.few_samples:
        return []
    text = (
        f"With {counted(len(audit.ids), 'forgotten sample')} every figure is uncertain; the intervals say how much. "
        "Attacks that tell hundreds of samples apart can't be ruled out or in by so few."
    )
    return [Finding("note", "Few samples", text)]


def guarantee(audit: Audit) -> list[Finding]:
    """What is proven."""
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
