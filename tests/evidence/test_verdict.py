"""What figures mean: each threshold decides what it is named after."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, InputError, Task, audit
from excise.evidence.against_retraining import is_measurable
from excise.evidence.attacks import RatioAttack, threshold_attack
from excise.evidence.deviation import Deviation, Deviations
from excise.evidence.gap import Gap
from excise.evidence.outcomes import LEVELS, MEANINGS, PASSED, Outcome, remedy, sentence
from excise.evidence.representation import LayerDistance, Representation
from excise.evidence.thresholds import Thresholds
from excise.evidence.verdict import verdict


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(5, 3)


@pytest.fixture(scope="module")
def found():
    """An audit of untrained networks, whose figures each test sets as it needs them."""
    inputs = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
    data = [TensorDataset(part, part[:, :3].argmax(1)) for part in (inputs[:70], inputs[70:])]
    task = Task(network(0), nn.CrossEntropyLoss(reduction="none"), *data)
    effort = Effort(relearn_steps=3, resamples=50, permutations=99, held_out_resamples=99)
    return audit(task, task.model, network(1), range(30), retrained=[network(2), network(3)], effort=effort)


def at(found, share, accuracy=0.9):
    """So much of the way left, with this accuracy of the unlearned model and 0.9 of all others."""
    gap = Gap(0.1 + share * 0.9, 1.0, 0.1)

    def scored(one, value):
        retain, test = (replace(part, value=value, interval=(value, value)) for part in (one.retain, one.test))
        return replace(one, retain=retain, test=test)

    return replace(
        found,
        original=scored(found.original, 0.9),
        unlearned=scored(found.unlearned, accuracy),
        retrained=tuple(scored(one, 0.9) for one in found.retrained),
        to_retraining=replace(found.to_retraining, forget_calibrated=gap, margins=gap, ratio=None),
    )


def level_of(one, title):
    return {finding.title: finding.level for finding in one.findings}.get(title)


def test_the_verdict_of_an_audit_is_by_the_usual_thresholds(found):
    assert found.verdict == verdict(found) == verdict(found, Thresholds())


@pytest.mark.parametrize(
    ("share", "level", "outcomes"),
    [
        (0.19, "good", ("forgotten", "mostly forgotten")),
        (0.21, "warning", ("partly forgotten",)),
        (0.49, "warning", ("partly forgotten",)),
        (0.51, "bad", ("not forgotten",)),
    ],
)
def test_what_is_left_of_the_way(found, share, level, outcomes):
    made = at(found, share)
    assert level_of(made.verdict, "Distance to retraining") == level
    assert made.verdict.outcome in outcomes
    wide = Thresholds(forgotten_share_left=0.6, partly_share_left=0.7)
    assert verdict(made, wide).outcome in ("forgotten", "mostly forgotten")


@pytest.mark.parametrize(("lost", "level"), [(0.005, "good"), (0.02, "warning"), (0.04, "bad")])
def test_accuracy_that_is_lost(found, lost, level):
    made = at(found, 0.1, 0.9 - lost)
    assert level_of(made.verdict, "Use of the model") == level
    assert (made.verdict.outcome == "damaged") == (level == "bad")
    lenient = Thresholds(noticed_accuracy_lost=0.05, damaging_accuracy_lost=0.05)
    assert level_of(verdict(made, lenient), "Use of the model") == "good"


def test_what_is_lost_in_noise(found):
    gap = Gap(0.5, 1.0, 0.7)
    assert not is_measurable(gap)
    assert is_measurable(gap, Thresholds(measurable_times_floor=1.4))
    noisy = at(found, 0.1)
    noisy = replace(noisy, to_retraining=replace(noisy.to_retraining, forget_calibrated=gap, margins=gap))
    assert noisy.verdict.outcome == "undecided"


def test_a_single_retrained_model(found):
    single = at(found, 0.1)
    for model, outcome in ((0.1, "forgotten"), (0.5, "undecided"), (0.97, "not forgotten")):
        gap = Gap(model, 1.0, float("nan"))
        made = replace(single, to_retraining=replace(single.to_retraining, forget_calibrated=gap))
        assert made.verdict.outcome.removeprefix("mostly ") == outcome


def test_other_thresholds(found):
    assert level_of(found.verdict, "Few samples") is None
    assert level_of(verdict(found, Thresholds(few_samples=30)), "Few samples") == "note"
    gained = at(found, 0.1, 0.9)
    gained = replace(gained, original=replace(gained.original, retain=replace(gained.original.retain, value=0.7)))
    assert gained.verdict.findings[0].title == "Another original"
    assert verdict(gained, Thresholds(implausible_accuracy_gained=0.3)).findings[0].title != "Another original"


def test_thresholds_must_make_sense():
    with pytest.raises(InputError, match="negligible_mean_loss must be a non-negative number, not -1"):
        Thresholds(negligible_mean_loss=-1)
    with pytest.raises(InputError, match="noticed_accuracy_lost must be at most damaging_accuracy_lost"):
        Thresholds(noticed_accuracy_lost=0.1)


# --- deviations from retrained models --------------------------------------------------------------------------------


def deviating(
    found, share=0.1, *, forget=(2.0, 0.8), signed=(1.8, 0.0), retain=(0.9, 0.9), test=(0.9, 0.9), samples=40
):
    """The original's and the unlearned model's |z| (or z); retrained models are from 0.7 to 0.9 (-0.1 to 0.1)."""

    def size(pair):
        return Deviation(*pair, (0.7, 0.8, 0.9), samples)

    made = at(found, share)
    z = Deviations(size(forget), size(retain), size(test), Deviation(*signed, (-0.1, 0.0, 0.1), samples))
    return replace(made, to_retraining=replace(made.to_retraining, deviations=z))


@pytest.mark.parametrize(
    ("share", "left", "outcomes"),
    [
        (0.1, 0.1, PASSED),
        (0.1, 0.4, ("partly forgotten",)),
        (0.1, 0.9, ("partly forgotten",)),  # measures that disagree: a part is gone, a part is left
        (0.9, 0.1, ("partly forgotten",)),
        (0.9, 0.9, ("not forgotten",)),
    ],
)
@pytest.mark.parametrize("by", ["size", "sign"])
def test_a_pass_needs_all_measures_to_agree(found, share, left, outcomes, by):
    sizes = {"forget": (2.0, 0.8 + 1.2 * left)} if by == "size" else {"signed": (1.8, 1.8 * left)}
    if share == left == 0.9:
        sizes = {"forget": (2.0, 1.9), "signed": (1.8, 1.7)}
    assert deviating(found, share, **sizes).verdict.outcome in outcomes


def test_what_can_not_be_measured_has_no_say(found):
    weak = {"forget": (1.1, 1.1), "signed": (0.2, 0.2)}
    made = deviating(found, 0.1, **weak)
    assert made.verdict.outcome in PASSED
    assert level_of(made.verdict, "Deviation of the forgotten samples") == "note"
    noise = Gap(0.9, 1.0, 0.9)
    lost = deviating(found, 0.1, forget=(2.0, 1.9), signed=(1.8, 1.7))
    lost = replace(lost, to_retraining=replace(lost.to_retraining, forget_calibrated=noise, margins=noise))
    assert lost.verdict.outcome == "not forgotten"
    lost = replace(lost, to_retraining=replace(lost.to_retraining, deviations=None))
    assert lost.verdict.outcome == "undecided"
    few = deviating(found, 0.1, forget=(1.1, 1.1), signed=(0.9, 0.9), samples=4)  # within 3 / √4 of nothing
    assert few.verdict.outcome in PASSED
    assert verdict(few, Thresholds(telling_mean_z_standard_errors=1)).outcome == "partly forgotten"


@pytest.mark.parametrize("group", ["retain", "test"])
def test_other_samples_that_moved(found, group):
    made = deviating(found, **{group: (0.8, 1.2)})
    assert made.verdict.outcome == "moved"
    assert level_of(made.verdict, "Deviation of other samples") == "bad"
    assert "trace of its own" in made.verdict.sentence
    assert "Nor are the" not in made.verdict.sentence
    known = deviating(found, signed=(1.8, 1.2), **{group: (0.8, 1.2)}).verdict
    assert known.outcome == "moved"
    assert "Nor are the 30 samples forgotten" in known.sentence
    assert verdict(made, Thresholds(moved_times_usual=1.4)).outcome in PASSED
    assert deviating(found, **{group: (0.8, 1.1)}).verdict.outcome in PASSED  # 1.22 times the farthest retrained one
    assert deviating(found, **{group: (1.1, 1.2)}).verdict.outcome in PASSED  # the original was there already
    assert deviating(found, 0.9, **{group: (0.8, 2.0)}).verdict.outcome == "not forgotten"  # as by softer answers


def test_forgotten_samples_that_are_answered_worse_than_by_retraining(found):
    made = deviating(found, signed=(1.8, -0.7))
    assert made.verdict.outcome == "overshot"
    assert level_of(made.verdict, "Deviation of the forgotten samples") == "bad"
    assert "worse than models that never saw them" in made.verdict.sentence
    assert "step" in made.verdict.remedy
    assert deviating(found, signed=(1.8, -0.5)).verdict.outcome in PASSED
    assert deviating(found, signed=(1.8, -0.7), samples=12).verdict.outcome in PASSED  # chance is larger
    assert deviating(found, signed=(-0.4, -0.7)).verdict.outcome in PASSED  # and the original was low as well
    assert verdict(made, Thresholds(overshot_mean_z=1)).outcome in PASSED
    assert verdict(made, Thresholds(overshot_standard_errors=9)).outcome in PASSED


def test_too_much_is_seen_where_there_was_nothing_to_forget(found):
    """The original is no farther from retrained models than these from each other."""
    made, noise = deviating(found, forget=(0.8, 3.0), signed=(0.0, -3.0)), Gap(1.5, 1.0, 0.9)
    made = replace(made, to_retraining=replace(made.to_retraining, forget_calibrated=noise, margins=noise))
    assert made.verdict.outcome == "overshot"


def test_of_both_the_larger_names_the_outcome(found):
    pushed = deviating(found, forget=(2.0, 5.0), signed=(1.8, -5.0), test=(0.9, 2.0))
    assert pushed.verdict.outcome == "overshot"
    moved = deviating(found, forget=(2.0, 2.0), signed=(1.8, -2.0), test=(0.9, 3.0))
    assert moved.verdict.outcome == "moved"


def test_damage_comes_first(found):
    made = deviating(found, signed=(1.8, -5.0), test=(0.9, 9.0))
    worse = at(found, 0.1, 0.8)
    worse = replace(worse, to_retraining=replace(worse.to_retraining, deviations=made.to_retraining.deviations))
    assert worse.verdict.outcome == "damaged"


# --- attacks: what chance is -----------------------------------------------------------------------------------------


def attacked(found, mine, interval, retrained):
    def of(one, auc, bounds):
        return replace(one, attacks={"loss": replace(one.attacks["loss"], auc=auc, interval=bounds)})

    made = at(found, 0.1)
    others = tuple(of(one, auc, (auc - 0.2, auc + 0.2)) for one, auc in zip(made.retrained, retrained, strict=True))
    return replace(made, unlearned=of(made.unlearned, mine, interval), retrained=others)


@pytest.mark.parametrize(
    ("mine", "interval", "retrained", "words", "outcome"),
    [
        (0.10, (0.03, 0.27), (0.31, 0.35), "more than chance", "mostly forgotten"),  # though intervals overlap
        (0.99, (0.62, 1.00), (0.57, 0.61), "more than chance", "mostly forgotten"),
        (0.45, (0.40, 0.50), (0.44, 0.48), "within chance", "forgotten"),
        (0.45, (0.44, 0.46), (0.40, 0.60), "differ as much from each other", "forgotten"),
        (0.45, (0.10, 0.90), (0.20, 0.20), "can't tell", "forgotten"),
    ],
)
def test_within_chance_is_said_where_the_interval_says_so(found, mine, interval, retrained, words, outcome):
    made = attacked(found, mine, interval, retrained)
    text = {one.title: one.text for one in made.verdict.findings}["Membership attack"]
    assert words in text
    assert ("within chance" in text) == (interval[0] <= sum(retrained) / 2 <= interval[1] and words != "can't tell")
    assert made.verdict.outcome == outcome


def ratio(known, changed, interval):
    attack = threshold_attack([0.0, 1.0], [0.0, 1.0])
    attacks = (replace(attack, auc=auc, interval=interval) for auc in (known, changed))
    return RatioAttack(*attacks, 0.0, 0.0, 0.0, (0.2, 0.8), (0.5, 0.6), z=np.zeros(2))


@pytest.mark.parametrize(
    ("known", "changed", "interval", "level", "words"),
    [
        (0.5, 0.84, (0.63, 0.98), "warning", "can be told"),  # by |z| retrained models get 0.6 at most, by z 0.8
        (0.7, 0.55, (0.45, 0.70), "good", "within chance"),
        (0.7, 0.75, (0.55, 0.90), "note", "can't tell"),
    ],
)
def test_the_attack_sample_by_sample(found, known, changed, interval, level, words):
    made = at(found, 0.1)
    made = replace(made, to_retraining=replace(made.to_retraining, ratio=ratio(known, changed, interval)))
    text = {one.title: one for one in made.verdict.findings}["Attack sample by sample"]
    assert (text.level, words in text.text) == (level, True)
    assert made.verdict.outcome == ("mostly forgotten" if level == "warning" else "forgotten")


# --- how strong a claim is, and what to do ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "claim", "words"),
    [
        (1, "single model", "weak claim: by a single retrained model"),
        (2, "weak", "weak claim: 2 retrained models are few"),
        (7, "weak", "weak claim: 7 retrained models are few"),
        (8, "unqualified", "a model that never saw them."),
    ],
)
def test_the_claim_depends_on_how_many_models_were_retrained(found, models, claim, words):
    made = at(found, 0.1)
    made = replace(made, retrained=(made.retrained * 4)[:models])
    assert made.verdict.claim == claim
    assert words in made.verdict.sentence
    assert ("weak" in made.verdict.sentence) == (claim != "unqualified")
    assert verdict(made, Thresholds(unqualified_claim_models=99)).claim != "unqualified"


def test_features_that_stayed_are_hidden_rather_than_forgotten(found):
    def inside(to_original, gap=None):
        made = at(found, 0.1)
        gap = gap or Gap(0.2, 0.2, 0.19)
        layers = (LayerDistance("0", gap, gap, to_original),)
        return replace(made, to_retraining=replace(made.to_retraining, representation=Representation(layers, 30, 50)))

    same = inside(1e-12)
    assert same.verdict.outcome == "partly forgotten"
    assert "inner features are as the original's" in same.verdict.sentence
    assert level_of(same.verdict, "Inner features") == "bad"
    assert verdict(same, Thresholds(unmoved_feature_distance=1e-13)).outcome in PASSED
    assert level_of(inside(0.01).verdict, "Inner features") == "note"
    assert level_of(inside(0.01, Gap(0.22, 0.8, 0.2)).verdict, "Inner features") == "good"
    assert level_of(inside(0.01, Gap(0.6, 0.8, 0.2)).verdict, "Inner features") == "warning"
    assert level_of(inside(0.01, Gap(0.6, 0.8, float("nan"))).verdict, "Inner features") == "note"
    nudged = inside(0.01, Gap(0.78, 0.8, 0.2))
    assert nudged.verdict.outcome == "partly forgotten"
    assert level_of(nudged.verdict, "Inner features") == "bad"
    assert verdict(nudged, Thresholds(hidden_feature_share_left=0.99)).outcome in PASSED


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_every_outcome_has_its_words(outcome):
    words = sentence(outcome, 12, 3, "weak")
    assert "12" in words
    assert ("weak claim" in words) == (outcome in PASSED)
    assert bool(remedy(outcome, 3)) == (outcome != "forgotten") == (outcome in MEANINGS)
    assert outcome in LEVELS
