"""What figures mean: each threshold decides what it is named after."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, InputError, Task, audit
from excise.evidence.gap import Gap
from excise.evidence.thresholds import Thresholds
from excise.evidence.verdict import is_measurable, verdict


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
