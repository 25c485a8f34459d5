"""The page for those who are not statisticians: what is undecided, and what the words mean."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, Task, audit
from excise.evidence.outcomes import Outcome, Verdict
from excise.report import html


@pytest.fixture(scope="module")
def found():
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data, test = (TensorDataset(part, (part[:, 0] > 0).long()) for part in (inputs[:30], inputs[30:]))
    models = [nn.Linear(3, 2) for _ in range(3)]
    task = Task(models[0], nn.CrossEntropyLoss(), data, test)
    quick = Effort(relearn_steps=1, resamples=20)
    return {
        count: audit(task, models[0], models[1], [1, 2], retrained=models[2:] * count or None, effort=quick)
        for count in (0, 1, 3)
    }


def worded(audit_, outcome, **options):
    made = replace(audit_)
    object.__setattr__(made, "verdict", Verdict(outcome, "So it is.", ()))
    return " ".join(html(made, **options).split())


@pytest.mark.parametrize(
    ("count", "advice"), [(0, "with three retrained models"), (1, "three or more"), (3, "--retrainings 6")]
)
def test_undecided_is_explained_with_what_to_do_next(found, count, advice):
    page = worded(found[count], "undecided")
    assert "neither a pass nor a failure" in page
    assert "What to do next." in page
    assert advice in page
    assert "What to do next." not in worded(found[count], "forgotten")


@pytest.mark.parametrize("outcome", [one for one in get_args(Outcome) if one != "forgotten"])
def test_every_outcome_but_forgotten_says_what_it_means_and_what_to_do(found, outcome):
    page = worded(found[3], outcome)
    assert f'What "{outcome}" means.</b>' in page
    assert "What to do next.</b>" in page


def test_words_are_explained(found):
    page = worded(found[0], "forgotten")
    for word in (
        "AUC",
        "Divergence",
        "Temperature",
        "Noise floor",
        "Certificate",
        "Undecided",
        "HMAC",
        "|z|",
        "CKA",
        "Moved",
        "Overshot",
    ):
        assert word in page.partition('id="glossary"')[2]


def test_marks_that_turn_words_around_are_shown_as_escapes(found):
    page = worded(
        found[0], "forgotten", reference="a\x1b[31m\u202eb", title="t\u2066\x07", settings={"x\u202d": "y\x9b"}
    )
    assert all(one.isprintable() or one == "\n" for one in page)
    assert "a\\x1b[31m\\u202eb" in page
