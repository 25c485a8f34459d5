"""How retained samples resist, against one-dimensional roots and exact retraining."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, exact_fit
from excise.curvature.margins import margins
from excise.unlearning.response import added_pull, pull


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.double)


@given(st.floats(0.01, 200), st.floats(-20, 20), st.floats(0.1, 3), st.floats(-50, 5))
def test_one_sample_pulls_as_a_root_search_says(kernel, margin, weight, push):
    found = float(added_pull(vector(kernel)[None], vector(margin), vector(weight), vector(push)))

    def miss(added):
        return added - weight * (expit(-(margin + push + kernel * added)) - expit(-margin))

    assert abs(found - brentq(miss, -weight, weight, xtol=1e-12)) < 1e-5


@given(st.integers(2, 12), st.integers(0, 10_000), st.floats(0.1, 100))
def test_all_is_at_rest(count, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, count + 2, generator=generator, dtype=torch.double)
    kernel = scale * rows @ rows.T / count
    values, push = torch.randn(2, count, generator=generator, dtype=torch.double) * 5
    weights = torch.ones(count, dtype=torch.double)
    added = added_pull(kernel, values, weights, push)
    now = pull(values + push + kernel @ added, weights)
    assert torch.allclose(added, now - pull(values, weights), atol=1e-4)


def test_samples_that_are_not_pushed_do_not_pull():
    kernel = torch.eye(3, dtype=torch.double)
    assert not added_pull(kernel, vector(1, 2, 3), vector(1, 1, 1), vector(0, 0, 0)).any()


def test_the_prediction_is_exact_retraining_where_the_model_is_linear():
    """Of two classes the margin is linear in the weights; the curvature besides the samples' is the weight decay."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator, dtype=torch.double)
    labels = (inputs[:, 0] + torch.randn(60, generator=generator) > 0).long()
    start = Task(
        nn.Linear(4, 2, bias=False).double(), nn.CrossEntropyLoss(), TensorDataset(inputs, labels), weight_decay=0.02
    )
    model = exact_fit(start, tolerance=1e-12).model
    gone, left = torch.arange(15), torch.arange(15, 60)
    # the mean over fewer samples weighs each one more, as a smaller weight decay does
    again = Task(start.model, start.loss, TensorDataset(inputs[left], labels[left]), weight_decay=0.02 * 60 / 45)
    truth = margins(start, exact_fit(again, tolerance=1e-12).model, range(60)).values

    signs = 2.0 * labels - 1
    rows = torch.cat([-signs[:, None] * inputs, signs[:, None] * inputs], 1)
    kernel = rows @ rows.T / (0.02 * 60)
    before = margins(start, model, range(60))
    let_go = -pull(before.values[gone], before.weights[gone])
    push = kernel[left][:, gone] @ let_go
    added = added_pull(kernel[left][:, left], before.values[left], before.weights[left], push)
    found = before.values + kernel[:, gone] @ let_go + kernel[:, left] @ added
    np.testing.assert_allclose(found, truth, atol=1e-4)
    linear = before.values + kernel[:, gone] @ let_go
    assert (linear - truth).abs().max() > 0.1  # without resistance it would be far off
