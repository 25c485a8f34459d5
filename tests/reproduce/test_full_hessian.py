"""The regression of lemma 1 in closed form against autograd, the fitted power laws, and the verdicts."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.networks.small import logistic
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.full_hessian.claims import compare, judge, loglog_slope
from excise.reproduce.studies.full_hessian.measure import (
    BEFORE,
    CHOSEN,
    DESCENT,
    FOCI,
    FULL,
    LOSS,
    OTHERS,
    OURS,
    PAPER,
    RANDOM,
)
from excise.reproduce.studies.full_hessian.plot import draw
from excise.reproduce.studies.full_hessian.regression import SoftmaxRegression
from excise.task import Task, objective
from excise.training.exact import exact_fit

DECAY = 0.05
GONE = 7


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    inputs = torch.tensor(rng.normal(size=(40, 3)))
    labels = torch.tensor(rng.integers(4, size=40))
    start = Task(logistic(0, 3, 4).double(), LOSS, TensorDataset(inputs, labels), weight_decay=DECAY)
    return Task(exact_fit(start, double=True).model, LOSS, start.train_set, weight_decay=DECAY)


@pytest.fixture(scope="module")
def regression(task):
    inputs, labels = task.train_set.tensors
    return SoftmaxRegression(torch.cat([inputs, torch.ones(40, 1).double()], dim=1), labels, DECAY)


def matrix(model):
    return torch.cat([model.weight, model.bias[:, None]], dim=1).detach()


def residual_value(regression, weights):
    """F without the sample, the obvious way: for autograd."""
    kept = [row for row in range(40) if row != GONE]
    loss = nn.functional.cross_entropy(regression.inputs[kept] @ weights.T, regression.labels[kept])
    return loss + DECAY / 2 * (weights**2).sum()


def test_slopes_are_those_of_the_objective(task, regression):
    kept = [row for row in range(40) if row != GONE]
    expected = objective.objective_gradient(task, task.model, kept)
    found = regression.slope(matrix(task.model), GONE)
    torch.testing.assert_close(found, torch.cat([expected["weight"], expected["bias"][:, None]], dim=1))
    of_sample = objective.gradient(task, task.model, [GONE])
    torch.testing.assert_close(
        regression.sample_slope(matrix(task.model), GONE),
        torch.cat([of_sample["weight"], of_sample["bias"][:, None]], dim=1),
    )


def test_the_slope_at_the_optimum_is_the_samples_share(task, regression):
    """What the lemma's proof sets to 0: ∇F(w*, D') = -(∇ℓ(w*, z) + λw*) / (n - 1)."""
    weights = matrix(task.model)
    share = -(regression.sample_slope(weights, GONE) + DECAY * weights) / 39
    torch.testing.assert_close(regression.slope(weights, GONE), share, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [2], [0, 3]])
def test_the_newton_step_is_that_of_the_dense_hessian(task, regression, classes):
    weights = matrix(task.model)
    dense = torch.func.hessian(lambda at: residual_value(regression, at))(weights)[classes][:, :, classes]
    slope = torch.func.grad(lambda at: residual_value(regression, at))(weights)[classes]
    size = slope.numel()
    expected = weights.clone()
    expected[classes] -= torch.linalg.solve(dense.reshape(size, size), slope.flatten()).reshape(slope.shape)
    torch.testing.assert_close(regression.newton(weights, GONE, classes), expected, atol=1e-8, rtol=1e-5)


def test_power_laws_are_fitted_for_each_sample():
    sizes = np.array([500, 2000, 10_000])
    powers = np.array([-1.0, -1.5, -2.0])
    slope = loglog_slope(sizes.tolist(), 7.0 * sizes[:, None] ** powers)
    assert slope.mean == pytest.approx(-1.5)
    # mean ± 4.303 · 0.5 / √3, Student's t with 2 degrees of freedom
    assert (slope.low, slope.high) == pytest.approx((-1.5 - 1.2421, -1.5 + 1.2421), abs=1e-4)


def test_a_sample_counts_once_however_many_sizes_it_was_removed_from():
    one = np.array([[1.0, 1.0, 1.0], [1.0, 4.0, 1.0]])
    other = np.array([[2.0, 2.0, 9.0], [2.0, 1.0, 9.0]])  # the second is smaller once, but not by the mean log-ratio
    pairs = compare(one, other, np.array([[True, True, False], [True, True, False]]))
    assert (pairs.smaller, pairs.count, pairs.samples_smaller, pairs.samples) == (3, 4, 1, 2)
    assert not pairs.holds


def made_up(power, *, foci=0.2, random=0.9, paper=3.0):
    """Figures of six samples that follow power laws, as ``measure`` gives them."""
    sizes = np.array([500, 1000, 5000])
    each = np.linspace(0.9, 1.1, 6)

    def law(k, factor):
        return (factor * each * (sizes[:, None] / 500.0) ** k).tolist()

    norms = {
        BEFORE: law(-1, 1.0),
        FULL: law(-2.5, 0.001),
        FOCI: law(power, 0.3),
        RANDOM: law(-1, 0.8),
        PAPER: law(-1, 9.0),
        OTHERS: law(power, 0.3),
        CHOSEN: law(-2, 0.01),
    }
    left = {FULL: 0.02, FOCI: foci, RANDOM: random, PAPER: paper, OURS: 0.3, DESCENT: 0.03}
    return {
        "sizes": sizes.tolist(),
        "sizes_retrained": [500, 1000],
        "norms": norms,
        "sample_norms": {name: law(0, 2.0 if name == FOCI else 1.0) for name in (BEFORE, FULL, FOCI, RANDOM, PAPER)},
        "left": {name: (value * np.tile(each, (2, 1))).tolist() for name, value in left.items()},
        "slices": [[3] * 6] * 3,
        "same_block": [[False] * 6] * 3,
    }


def verdicts(measured):
    return [claim.verdict for claim in judge(measured)]


def test_verdicts_follow_the_figures():
    yes, no = "confirmed", "not confirmed"
    assert verdicts(made_up(-1.0)) == [no, no, yes, yes, no]
    assert verdicts(made_up(-2.1, paper=0.5)) == [yes, yes, yes, yes, yes]
    assert verdicts(made_up(-1.0, foci=0.9, random=0.2)) == [no, no, no, yes, no]


def test_pairs_with_equal_blocks_do_not_count():
    measured = made_up(-1.0) | {"same_block": [[True] * 6] * 3}
    assert verdicts(measured)[2:4] == ["not confirmed", "not confirmed"]
    assert "0 of 0 pairs" in judge(measured)[3].measured


def test_the_plot_has_the_papers_series_on_logarithmic_axes():
    figure = new_figure((10.0, 4.4))
    draw(made_up(-1.0), figure)
    left, right = figure.axes
    assert {axes.get_xscale() for axes in (left, right)} | {axes.get_yscale() for axes in (left, right)} == {"log"}
    lines = {line.get_label(): line.get_ydata() for line in left.get_lines()}
    assert {BEFORE, FULL, FOCI, RANDOM, PAPER, CHOSEN} <= set(lines)
    np.testing.assert_allclose(lines["gap L-FOCI - full (Lemma 1)"][0], 0.3 - 0.001)
    assert {line.get_label() for line in right.get_lines()} >= {FULL, FOCI, RANDOM, PAPER, OURS, DESCENT}
