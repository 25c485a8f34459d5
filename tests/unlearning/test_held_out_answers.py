"""Answers of held-out samples for those that are known by heart."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from excise.curvature.margins import Margins
from excise.unlearning.held_out_answers import FEWEST, HeldOutAnswers

numbers = st.lists(st.floats(-20, 20), min_size=2, max_size=60)


def of(values, classes=None):
    values = torch.tensor(values, dtype=torch.double)
    labels = torch.zeros(len(values), dtype=torch.long) if classes is None else torch.tensor(classes)
    return Margins(values, torch.ones_like(values), labels)


@given(numbers, numbers)
def test_the_distance_is_kolmogorov_and_smirnovs(ours, theirs):
    found = HeldOutAnswers(of(theirs), torch.tensor(ours, dtype=torch.double)).distance
    assert found == np.float64(ks_2samp(ours, theirs).statistic) or abs(found - ks_2samp(ours, theirs).statistic) < 1e-9


@given(numbers, numbers, st.lists(st.floats(-30, 30), min_size=2, max_size=20))
def test_ranks_are_kept_and_no_answer_is_invented(held_out, predicted, asked):
    answers = HeldOutAnswers(of(held_out), torch.tensor(predicted, dtype=torch.double))
    asked = torch.tensor(sorted(asked), dtype=torch.double)
    found = answers.instead_of(asked, torch.zeros(len(asked), dtype=torch.long))
    assert (found.diff() >= -1e-9).all()
    assert found.min() >= min(held_out)
    assert found.max() <= max(held_out)


def test_predictions_that_are_as_held_out_answers_stay():
    values = np.random.default_rng(0).normal(3, 2, 2000)
    answers = HeldOutAnswers(of(values), torch.tensor(values))
    asked = torch.tensor([0.0, 3.0, 6.0], dtype=torch.double)
    assert torch.allclose(answers.instead_of(asked, torch.zeros(3, dtype=torch.long)), asked, atol=0.1)


def test_each_class_has_its_own_answers_where_there_are_enough():
    values = [*np.linspace(0, 1, FEWEST), *np.linspace(10, 11, FEWEST - 1)]
    answers = HeldOutAnswers(of(values, [0] * FEWEST + [1] * (FEWEST - 1)), torch.zeros(4, dtype=torch.double))
    found = answers.instead_of(torch.tensor([5.0, 5.0], dtype=torch.double), torch.tensor([0, 1]))
    assert found[0] <= 1
    assert found[1] > 10  # the highest of all, since class 1 has too few
