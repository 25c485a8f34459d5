"""Answers of held-out samples for those that are known by heart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from excise.curvature.margins import Margins
from excise.unlearning.answered import Answered
from excise.unlearning.held_out_answers import FEWEST, HeldOutAnswers

numbers = st.lists(st.floats(-20, 20), min_size=2, max_size=60)


def of(values, classes=None):
    values = torch.tensor(values, dtype=torch.double)
    labels = torch.zeros(len(values), dtype=torch.long) if classes is None else torch.tensor(classes)
    return Margins(values, torch.ones_like(values), labels)


@given(numbers, numbers)
def test_the_distance_is_kolmogorov_and_smirnovs(ours, theirs):
    found = HeldOutAnswers(of(theirs), of(ours)).distance
    assert found == np.float64(ks_2samp(ours, theirs).statistic) or abs(found - ks_2samp(ours, theirs).statistic) < 1e-9


@given(numbers, numbers, st.lists(st.floats(-30, 30), min_size=2, max_size=20))
def test_ranks_are_kept_and_no_answer_is_invented(held_out, predicted, asked):
    answers = HeldOutAnswers(of(held_out), of(predicted))
    asked = torch.tensor(sorted(asked), dtype=torch.double)
    found = answers.instead_of(asked, torch.zeros(len(asked), dtype=torch.long))
    assert (found.diff() >= -1e-9).all()
    assert found.min() >= min(held_out)
    assert found.max() <= max(held_out)


def test_predictions_that_are_as_held_out_answers_stay():
    values = np.random.default_rng(0).normal(3, 2, 2000)
    answers = HeldOutAnswers(of(values), of(values))
    asked = torch.tensor([0.0, 3.0, 6.0], dtype=torch.double)
    assert torch.allclose(answers.instead_of(asked, torch.zeros(3, dtype=torch.long)), asked, atol=0.1)


def test_each_class_has_its_own_answers_where_there_are_enough():
    values = [*np.linspace(0, 1, FEWEST), *np.linspace(10, 11, FEWEST - 1)]
    answers = HeldOutAnswers(of(values, [0] * FEWEST + [1] * (FEWEST - 1)), of([0.0] * 4))
    found = answers.instead_of(torch.tensor([5.0, 5.0], dtype=torch.double), torch.tensor([0, 1]))
    assert found[0] <= 1
    assert found[1] > 10  # the highest of all, since class 1 has too few


def test_samples_without_a_label_do_not_count():
    values, none = np.random.default_rng(1).normal(3, 2, 400), [50.0] * 300
    labelled = of([*values, *none])
    labelled = replace(labelled, weights=(torch.arange(700) < 400).double())
    assert HeldOutAnswers(labelled, of(values)).distance < 1e-9
    assert HeldOutAnswers(of(values), labelled).distance < 1e-9
    assert HeldOutAnswers(labelled, of(values)).instead_of(torch.tensor([99.0]).double(), torch.tensor([0])) < 20


def test_classes_count_as_often_as_they_are_retained():
    """The second class is known badly; there are few of it, but as many held-out ones as of the first."""
    rng = np.random.default_rng(2)
    retained = of([*rng.normal(5, 1, 950), *rng.normal(-2, 1, 50)], [0] * 950 + [1] * 50)
    held_out = of([*rng.normal(5, 1, 500), *rng.normal(-2, 1, 500)], [0] * 500 + [1] * 500)
    counts = Answered(retained, held_out, torch.arange(1000)).held_out_counts
    assert HeldOutAnswers(held_out, retained).distance > 0.4
    assert HeldOutAnswers(held_out, retained, counts).distance < 0.1


@pytest.mark.parametrize("count", [3, 10, 24])
def test_few_samples_on_trial_are_not_taken_for_known_by_heart(count):
    """They look exactly like held-out ones, and are drawn fifty times."""
    rng = np.random.default_rng(3)
    held_out = of(rng.normal(3, 2, 2000))
    found = [HeldOutAnswers(held_out, of(rng.normal(3, 2, count))).are_needed for _ in range(50)]
    assert sum(found) <= 5
    assert HeldOutAnswers(held_out, of(rng.normal(40, 2, count))).are_needed
