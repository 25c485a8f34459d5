"""What an audit means, in words: a verdict and the findings that it rests on.

First comes whether anything was done, and whether the model is still of use; then whether more was moved than was to
be forgotten, or the samples were pushed past retraining; then what is left of them, by every measure: a pass needs all
that can be measured to agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from excise.evidence.against_retraining import INSIDE, Weighed, is_nearer, weigh
from excise.evidence.findings import (
    ATTACKS,
    HIDDEN,
    LOWER_IS_BETTER,
    SIDES,
    USEFUL,
    few,
    few_shot,
    guarantee,
    membership,
    near_duplicates,
    relearning,
    usefulness,
)
from excise.evidence.outcomes import PASSED, Claim, Finding, Outcome, Verdict, counted, remedy, sentence
from excise.evidence.thresholds import USUAL, Thresholds

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit


def verdict(audit: Audit, thresholds: Thresholds = USUAL) -> Verdict:
    """Weigh the figures of an audit; ``Audit.verdict`` is by the usual thresholds."""
    compared = audit.to_retraining
    weighed = _against_held_out(audit) if compared is None else weigh(audit, compared, thresholds)
    findings = (
        *weighed.findings,
        *membership(audit, thresholds),
        *usefulness(audit, thresholds),
        *few_shot(audit, thresholds),
        *relearning(audit, thresholds),
        *near_duplicates(audit),
        *few(audit, thresholds),
        *guarantee(audit),
    )
    first = _unusable(audit, thresholds)
    if first is not None:
        outcome, finding = first
        findings = (finding, *findings)
    else:
        outcome = _outcome(audit, weighed, findings, thresholds)
    claim = _claim(len(audit.retrained), thresholds)
    words = _in_words(audit, outcome, weighed, claim, thresholds)
    return Verdict(outcome, words, findings, claim, remedy(outcome, len(audit.retrained)))


def _unusable(audit: Audit, thresholds: Thresholds) -> tuple[Outcome, Finding] | None:
    """Where nothing was done, or the model before is another one: then no figure has a say."""
    if audit.original.model_hash == audit.unlearned.model_hash:
        text = "The model after is the model before, weight by weight: nothing was done."
        return "not forgotten", Finding("bad", "Nothing was changed", text)
    if _is_another_model(audit, thresholds):
        text = (
            f"On retained samples the original's {audit.metric} is {audit.original.retain.value:.3f}, the unlearned "
            f"model's {audit.unlearned.retain.value:.3f}: the original is not the model that was trained on them, so "
            "nothing can be concluded. Pass the weights from before the deletion."
        )
        return "undecided", Finding("bad", "Another original", text)
    return None


def _outcome(audit: Audit, weighed: Weighed, findings: tuple[Finding, ...], thresholds: Thresholds) -> Outcome:
    bad = {one.title for one in findings if one.level == "bad"}
    if USEFUL in bad and (weighed.outcome != "not forgotten" or not _is_known(audit) or _is_spoilt(audit, thresholds)):
        return "damaged"
    if weighed.astray is not None:
        # softer answers move every sample, and forget none
        softened = weighed.astray == "moved" and weighed.by_answers == "not forgotten"
        return "not forgotten" if softened else weighed.astray
    outcome = weighed.outcome
    if outcome == "forgotten" and any(one.title in ATTACKS and one.level == "warning" for one in findings):
        outcome = "mostly forgotten"
    return "partly forgotten" if outcome in PASSED and bad & {HIDDEN, INSIDE} else outcome


def _claim(models: int, thresholds: Thresholds) -> Claim:
    if models < 2:
        return "single model" if models else "no retrained model"
    return "unqualified" if models >= thresholds.unqualified_claim_models else "weak"


def _in_words(audit: Audit, outcome: Outcome, weighed: Weighed, claim: Claim, thresholds: Thresholds) -> str:
    compared, what = audit.to_retraining, counted(len(audit.ids), "sample")
    if outcome == "not forgotten" and compared is not None and not is_nearer(audit, compared, thresholds):
        return (
            f"The model has not forgotten the {what}: it is no nearer to a model that never saw them than the original."
        )
    hidden = any(one.title == INSIDE and one.level == "bad" for one in weighed.findings)
    if outcome == "partly forgotten" and hidden:
        return (
            f"The model no longer shows the {what}, but its inner features are as the original's: what they hold is "
            "hidden at the output, and not known to be forgotten."
        )
    words = sentence(outcome, len(audit.ids), len(audit.retrained), claim)
    if outcome == "moved" and weighed.still_known:
        words += f" Nor are the {what} forgotten: they are known better than to models that never saw them."
    return words


def _is_another_model(audit: Audit, thresholds: Thresholds) -> bool:
    """Whether the model after knows the retained samples much better than the one before: that is not forgetting."""
    gained = audit.unlearned.retain.value - audit.original.retain.value
    return audit.metric not in LOWER_IS_BETTER and gained > thresholds.implausible_accuracy_gained


def _is_spoilt(audit: Audit, thresholds: Thresholds) -> bool:
    """Whether the model itself, and not the original already, is the one that does badly."""
    pairs = [(getattr(audit.original, side).value, getattr(audit.unlearned, side).value) for side in SIDES]
    if audit.metric in LOWER_IS_BETTER:
        return any(after > before * (1 + thresholds.damaging_accuracy_lost) for before, after in pairs)
    return any(after < before - thresholds.damaging_accuracy_lost for before, after in pairs)


def _is_known(audit: Audit) -> bool:
    """Whether the model does on the forgotten samples as the original, rather than as models that never saw them."""
    before, after = audit.original.forget.value, audit.unlearned.forget.value
    never = [one.forget.value for one in audit.retrained] or [audit.unlearned.test.value]
    return abs(after - before) < abs(after - float(np.mean(never)))


def _against_held_out(audit: Audit) -> Weighed:
    """Without retrained models: as data never seen?"""
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
            return _alone("undecided", Finding("warning", title, text))
        return _alone("forgotten", Finding("good", title, text + "They can't be told apart."))
    if found.verdict == "lower":
        text += "The model still knows them better than data it never saw."
        better = found.above > (audit.original.held_out.above + 0.5) / 2  # of ranks: softer answers don't change them
        return _alone("partly forgotten" if better else "not forgotten", Finding("bad", title, text))
    text += (
        "It answers them worse than data it never saw, which gives them away as well, unless they were unusual "
        "(mislabelled, say): retrain to tell."
    )
    return _alone("undecided", Finding("warning", title, text))


def _alone(outcome: Outcome, finding: Finding) -> Weighed:
    return Weighed(outcome, (finding,), outcome)
