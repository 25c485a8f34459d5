"""L-BFGS from a known curvature, against closed forms and scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from excise.curvature.quasi_newton import minimised


def quadratic(seed, size=6):
    """½ xᵀ A x - b x with A positive definite; as A and b, and as a function."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.double)
    matrix, vector = root @ root.T + 0.1 * torch.eye(size), torch.randn(size, generator=generator, dtype=torch.double)
    return matrix, vector, lambda x: (float(x @ matrix @ x / 2 - vector @ x), matrix @ x - vector)


@given(st.integers(0, 200))
def test_a_quadratic_whose_curvature_is_known_takes_one_iteration(seed):
    matrix, vector, function = quadratic(seed)
    found = minimised(function, torch.zeros(6).double(), lambda gradient: torch.linalg.solve(matrix, gradient), 1)
    assert torch.allclose(found, torch.linalg.solve(matrix, vector), atol=1e-8)


@given(st.integers(0, 200))
def test_what_the_curvature_does_not_say_is_learned(seed):
    """Known but for two directions, so that the rest of the eigenvalues are 1 and some iterations are enough."""
    matrix, vector, function = quadratic(seed)
    values, axes = torch.linalg.eigh(matrix)
    known = values.clone()
    known[[0, 5]] = values[[0, 5]] * torch.tensor([3.0, 0.2]).double()
    found = minimised(function, torch.zeros(6).double(), lambda gradient: axes @ ((axes.T @ gradient) / known), 30)
    assert torch.allclose(found, torch.linalg.solve(matrix, vector), rtol=1e-3, atol=1e-4 / float(values[0]))


def test_it_ends_where_scipy_does():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 4, generator=generator, dtype=torch.double)
    labels = (inputs[:, 0] + torch.randn(80, generator=generator) > 0).double()

    def function(weights):
        weights = weights.clone().requires_grad_()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(inputs @ weights, labels)
        loss = loss + 0.01 * (weights @ weights)
        return float(loss.detach()), torch.autograd.grad(loss, weights)[0]

    def for_scipy(weights):
        value, gradient = function(torch.tensor(weights))
        return value, gradient.numpy()

    truth = minimize(for_scipy, np.zeros(4), jac=True, method="L-BFGS-B", options={"gtol": 1e-10}).x
    found = minimised(function, torch.zeros(4).double(), lambda gradient: 3 * gradient, 60)
    assert np.allclose(found.numpy(), truth, atol=1e-4)


@given(st.floats(0.01, 1e6), st.integers(0, 20))
def test_no_iteration_goes_uphill_however_wrong_the_curvature_is(scale, iterations):
    """Rosenbrock's valley, which bends, and whose curvature is not even positive everywhere."""

    def function(x):
        x = x.clone().requires_grad_()
        value = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        return float(value.detach()), torch.autograd.grad(value, x)[0]

    start = torch.tensor([-1.2, 1.0]).double()
    ends = [minimised(function, start, lambda g: scale * g, count) for count in (iterations, iterations + 1)]
    assert function(ends[1])[0] <= function(ends[0])[0] <= function(start)[0]


def test_a_step_into_nowhere_is_shortened():
    """-log(1 - x) - 1.5 x has no value from 1 on, and the curvature sends the first step beyond it."""

    def function(x):
        return (math.inf if x >= 1 else float(-torch.log1p(-x) - 1.5 * x)), 1 / (1 - x) - 1.5

    found = minimised(function, torch.zeros(1), lambda gradient: 100 * gradient, 20)
    assert float(found) == pytest.approx(1 / 3, abs=1e-3)


@given(st.integers(0, 200), st.integers(0, 6))
def test_it_stops_where_the_function_is_small_enough_but_not_before_the_fewest_iterations(seed, fewest):
    """The iterations are those of a run that does not stop: the first that is small enough ends it."""
    _, _, function = quadratic(seed)
    start = torch.ones(6).double()
    ends = [minimised(function, start, lambda gradient: 0.1 * gradient, count) for count in range(8)]
    values = [function(end)[0] for end in ends]
    enough = (values[0] + values[-1]) / 2
    first = next(count for count, value in enumerate(values) if count >= fewest and value <= enough)
    found = minimised(function, start, lambda gradient: 0.1 * gradient, 7, fewest=fewest, enough=enough)
    assert torch.equal(found, ends[first])


@given(st.floats(0.1, 1e3))
def test_a_start_that_is_too_high_is_halved(far):
    seen = []

    def function(x):
        seen.append(float(x))
        return float(x) ** 2, 2 * x

    start, highest = torch.tensor([far], dtype=torch.double), (far / 5) ** 2
    found = minimised(function, start, lambda gradient: 0.25 * gradient, 0, highest=highest)
    assert seen == [far, far / 2, far / 4, far / 8]
    assert float(found) == far / 8


def test_it_stays_where_there_is_no_way_down():
    start = torch.tensor([2.0, -1.0])
    assert minimised(lambda x: (0.0, torch.zeros_like(x)), start, lambda gradient: gradient, 5) is start
