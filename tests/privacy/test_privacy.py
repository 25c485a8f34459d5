"""The size of noise, and certificates, against integrals, simulations and optima that are computed without excise."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import InputError
from excise.privacy import (
    analytic_sigma,
    certify,
    classic_sigma,
    gaussian_delta,
    gaussian_epsilon,
    newton_distance,
)

epsilons = st.floats(-6, 3).map(lambda x: 10**x)
deltas = st.floats(-30, -0.01).map(lambda x: 10**x)
factors = st.floats(1.001, 10)


def hockey_stick(sigma, distance, epsilon):
    """∫ max(p - e^ε q, 0) for p = N(distance, σ²) and q = N(0, σ²), which is what (ε, δ) means."""
    normal = scipy.stats.norm

    def excess(x):
        return max(normal.pdf(x, distance, sigma) - math.exp(epsilon) * normal.pdf(x, 0, sigma), 0.0)

    start = epsilon * sigma**2 / distance + distance / 2  # where p = e^ε q
    middle = max(start, distance)
    ends = (start, middle, middle + sigma, middle + 12 * sigma)
    parts = [part for part in pairwise(ends) if part[0] < part[1]]
    return sum(scipy.integrate.quad(excess, *part, epsabs=0, epsrel=1e-10)[0] for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0, 0.01, 0.3, 1, 4, 20])
@pytest.mark.parametrize(("sigma", "distance"), [(1, 1), (0.5, 3), (20, 1), (0.2, 0.1), (1, 9)])
def test_delta_is_the_hockey_stick_divergence(sigma, distance, epsilon):
    assert gaussian_delta(sigma, distance, epsilon) == pytest.approx(
        hockey_stick(sigma, distance, epsilon), rel=1e-8, abs=1e-300
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.01), (1, 1e-5), (8, 1e-3), (0.001, 0.2)])
def test_analytic_sigma_has_the_delta_asked_for_by_integration(epsilon, delta):
    sigma = analytic_sigma(2.5, epsilon, delta)
    assert hockey_stick(sigma, 2.5, epsilon) == pytest.approx(delta, rel=1e-8)
    assert hockey_stick(0.99 * sigma, 2.5, epsilon) > delta


def test_delta_of_weights_in_many_dimensions_by_simulation():
    rng = np.random.default_rng(0)
    found, retrained, sigma, epsilon = rng.normal(size=7), rng.normal(size=7), 1.5, 0.7
    noisy = found + sigma * rng.standard_normal((200_000, 7))
    loss = (np.sum((noisy - retrained) ** 2, axis=1) - np.sum((noisy - found) ** 2, axis=1)) / (2 * sigma**2)
    excess = np.maximum(1 - np.exp(epsilon - loss), 0)
    error = excess.std() / math.sqrt(len(excess))
    exact = gaussian_delta(sigma, float(np.linalg.norm(found - retrained)), epsilon)
    assert abs(excess.mean() - exact) < 4 * error < 0.02 * exact


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [
        # mpmath, 60 to 400 digits: findroot of log(ncdf(1/2s - es) - exp(e) ncdf(-1/2s - es)) - log(d) over log s
        (1, 1e-5, 3.7306316348159418),
        (0.1, 0.01, 9.5418230888288551),
        (0.1, 1e-5, 30.74956613197745),
        (10, 1e-5, 0.49988861970900851),
        (1000, 1e-10, 0.025752834505378035),
        (1e6, 1e-5, 0.00070924208686592788),
        (1e-6, 1e-3, 398.74303542310581),
        (1e-9, 1e-12, 2436407769.2231269),
        (0.5, 1e-100, 41.929564631572608),
        (3, 0.5, 0.35499420929612442),
        (0.5, 0.2, 1.1067704905250415),
        (0.01, 0.35, 1.0910968012801934),
        (1, 1e-300, 36.8654978941111),
    ],
)
def test_analytic_sigma_in_many_digits(epsilon, delta, sigma):
    assert analytic_sigma(1, epsilon, delta) == pytest.approx(sigma, rel=1e-13)
    assert analytic_sigma(1e-3, epsilon, delta) == pytest.approx(1e-3 * sigma, rel=1e-13)


@given(epsilons, deltas, factors)
@settings(deadline=None)
def test_more_noise_for_less_epsilon_and_less_delta(epsilon, delta, factor):
    sigma = analytic_sigma(1, epsilon, delta)
    assert analytic_sigma(1, epsilon * factor, delta) <= sigma
    assert analytic_sigma(1, epsilon, delta / factor) > sigma


@given(st.floats(0.05, 20), st.floats(0, 10), factors)
@settings(deadline=None)
def test_less_delta_with_more_noise_or_epsilon_and_more_with_distance(sigma, epsilon, factor):
    delta = gaussian_delta(sigma, 1, epsilon)
    assert 0 <= gaussian_delta(sigma * factor, 1, epsilon) <= delta <= 1
    assert gaussian_delta(sigma, 1, epsilon * factor) <= delta
    assert gaussian_delta(sigma, factor, epsilon) == pytest.approx(gaussian_delta(sigma / factor, 1, epsilon), rel=1e-9)


@given(epsilons, deltas)
@settings(deadline=None)
def test_delta_and_epsilon_are_inverse_to_sigma(epsilon, delta):
    sigma = analytic_sigma(3, epsilon, delta)
    assert gaussian_delta(sigma, 3, epsilon) == pytest.approx(delta, rel=1e-9)
    # δ hardly depends on a tiny ε, so that only its size can be asked back
    assert gaussian_epsilon(sigma, 3, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-13 * 3 / sigma)


@given(epsilons.filter(lambda e: e <= 1), deltas)
@settings(deadline=None)
def test_the_classical_formula_asks_for_more_noise(epsilon, delta):
    assert analytic_sigma(1, epsilon, delta) < classic_sigma(1, epsilon, delta)


def test_the_classical_formula_breaks_its_promise_at_large_epsilon():
    epsilon, delta = 20, 0.1
    assert hockey_stick(math.sqrt(2 * math.log(1.25 / delta)) / epsilon, 1, epsilon) > delta
    assert hockey_stick(classic_sigma(1, 1, delta), 1, 1) < delta


def test_limits():
    assert analytic_sigma(0, 1, 1e-5) == classic_sigma(0, 1, 1e-5) == 0
    assert gaussian_delta(1, 0, 0) == gaussian_epsilon(1, 0, 1e-5) == 0
    assert gaussian_delta(1, 1, 1e6) == 0
    assert gaussian_delta(1e-6, 1, 1) == 1
    assert gaussian_delta(1e-300, 1e300, 1) == 1
    assert gaussian_epsilon(1e-300, 1e300, 0.1) == math.inf
    assert gaussian_epsilon(1, 1, 0.5) == 0  # noise alone: δ(0) = 0.38
    assert gaussian_epsilon(1e-3, 1, 1e-5) == pytest.approx(1e6 / 2, rel=0.01)  # a²/2
    assert 0 < analytic_sigma(1, 1e-300, 1e-20) < analytic_sigma(1, 1e-300, 1e-200) < math.inf
    assert 0 < analytic_sigma(1, 1e300, 1e-20) < analytic_sigma(1, 1e3, 1 - 1e-16) < math.inf


class Logistic:
    """L2 logistic regression in float64, rows of norm at most 1, solved to the last digits."""

    def __init__(self, X, y, weight_decay):
        self.X, self.y, self.weight_decay = X, y, weight_decay

    def without(self, m):
        return Logistic(self.X[m:], self.y[m:], self.weight_decay)

    def gradient(self, w):
        odds = 1 / (1 + np.exp(self.y * (self.X @ w)))
        return -(self.X.T @ (self.y * odds)) / len(self.y) + self.weight_decay * w

    def hessian(self, w):
        odds = 1 / (1 + np.exp(self.y * (self.X @ w)))
        return (self.X.T * (odds * (1 - odds))) @ self.X / len(self.y) + self.weight_decay * np.eye(len(w))

    def optimum(self):
        w = np.zeros(self.X.shape[1])
        for _ in range(50):
            w = w - np.linalg.solve(self.hessian(w), self.gradient(w))
        assert np.linalg.norm(self.gradient(w)) < 1e-14
        return w


class Ridge(Logistic):
    def without(self, m):
        return Ridge(self.X[m:], self.y[m:], self.weight_decay)

    def gradient(self, w):
        return self.X.T @ (self.X @ w - self.y) / len(self.y) + self.weight_decay * w

    def hessian(self, w):
        return self.X.T @ self.X / len(self.y) + self.weight_decay * np.eye(len(w))


def problem(kind, seed, weight_decay, n=60, p=5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.sign(X @ rng.standard_normal(p) + 0.5 * rng.standard_normal(n))
    return kind(X, y, weight_decay), rng


@pytest.mark.parametrize("kind", [Ridge, Logistic])
@pytest.mark.parametrize("weight_decay", [1e-3, 0.1, 2.0])
def test_certificate_covers_the_true_distance(kind, weight_decay):
    for seed in range(5):
        task, rng = problem(kind, seed, weight_decay)
        retrained = task.without(3).optimum()
        for size in (1e-6, 0.1, 10):
            w = retrained + size * rng.standard_normal(5)
            distance = np.linalg.norm(w - retrained)
            norm = float(np.linalg.norm(task.without(3).gradient(w)))
            found = certify(norm, weight_decay, convex=True, sigma=0.5, delta=1e-4)
            assert found.kind == "convex"
            assert distance <= found.bound
            assert found.epsilon is not None
            assert gaussian_delta(0.5, distance, found.epsilon) <= 1e-4 * (1 + 1e-9)


def test_certificate_is_tight_where_weight_decay_is_all_the_curvature():
    task = Ridge(np.zeros((4, 3)), np.ones(4), 0.25)
    w = np.array([3.0, 4.0, 0.0])
    assert certify(float(np.linalg.norm(task.gradient(w))), 0.25, convex=True).bound == 5.0


def test_certificate_of_noise_is_the_smallest_epsilon():
    found = certify(0.03, 0.01, convex=True, sigma=2.0, delta=1e-6)
    assert (found.bound, found.sigma, found.delta) == (pytest.approx(3.0), 2.0, 1e-6)
    assert hockey_stick(2.0, 3.0, found.epsilon) == pytest.approx(1e-6, rel=1e-6)
    for words in ("Guaranteed: ", "Not guaranteed: ", "this data set and request", "chosen beforehand"):
        assert words in found.reason


def test_certificate_without_noise_states_no_epsilon():
    found = certify(0.03, 0.01, convex=True)
    assert found.epsilon is found.sigma is found.delta is None
    assert "There is no noise" in found.reason


def test_an_exact_removal_needs_no_epsilon():
    found = certify(0, 0.01, convex=True, sigma=1.0, delta=1e-6)
    assert found.bound == found.epsilon == 0


@pytest.mark.parametrize(
    ("weight_decay", "convex", "why"),
    [(0.1, False, "not convex"), (0, True, "weight decay is 0"), (0, False, "not convex")],
)
def test_what_cannot_be_certified_is_heuristic(weight_decay, convex, why):
    found = certify(0.03, weight_decay, convex=convex, sigma=2.0, delta=1e-6)
    assert (found.kind, found.bound, found.epsilon, found.gradient_norm) == ("heuristic", None, None, 0.03)
    assert (found.sigma, found.delta) == (2.0, 1e-6)
    assert found.reason.startswith("Not guaranteed")
    assert why in found.reason
    assert "no ε" in found.reason
    assert "no ε" not in certify(0.03, weight_decay, convex=convex).reason


@pytest.mark.parametrize("m", [1, 5, 30, 55])
@pytest.mark.parametrize("weight_decay", [0.1, 1.0])
def test_newton_step_ends_within_its_bound(m, weight_decay):
    for seed in range(5):
        task, _ = problem(Logistic, seed, weight_decay)
        residual, w = task.without(m), task.optimum()
        stepped = w - np.linalg.solve(residual.hessian(w), residual.gradient(w))
        # the logistic loss has |s'| ≤ 1, so that with its weight decay L ≤ 2, and |s'''| ≤ 1/(6√3), which is M
        bound = newton_distance(
            removed=m, samples=60, lipschitz=2, hessian_lipschitz=1 / (6 * math.sqrt(3)), strong_convexity=weight_decay
        )
        assert np.linalg.norm(stepped - residual.optimum()) <= bound


def test_newton_bound_is_the_published_one():
    m, n, L, M, decay = 3, 70, 1.7, 0.4, 0.2
    found = newton_distance(removed=m, samples=n, lipschitz=L, hessian_lipschitz=M, strong_convexity=decay)
    assert found == pytest.approx(2 * M * m**2 * L**2 / (decay**3 * n**2), rel=1e-14)


def test_newton_step_on_a_quadratic_is_exact():
    task, _ = problem(Ridge, 0, 0.1)
    residual, w = task.without(20), task.optimum()
    stepped = w - np.linalg.solve(residual.hessian(w), residual.gradient(w))
    assert np.allclose(stepped, residual.optimum(), rtol=0, atol=1e-14)
    assert newton_distance(removed=20, samples=60, lipschitz=9, hessian_lipschitz=0, strong_convexity=0.1) == 0


constants = {"removed": 1, "samples": 10, "lipschitz": 1, "hessian_lipschitz": 1, "strong_convexity": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: newton_distance(**{**constants, "removed": 0}), "removed must be a whole number, 1 or more, not 0"),
        (
            lambda: newton_distance(**{**constants, "removed": 1.0}),
            "removed must be a whole number, 1 or more, not 1.0",
        ),
        (lambda: newton_distance(**{**constants, "removed": 10}), r"less than samples \(10\), not 10"),
        (
            lambda: newton_distance(**{**constants, "samples": True}),
            "samples must be a whole number, 1 or more, not True",
        ),
        (lambda: newton_distance(**{**constants, "lipschitz": -1}), "lipschitz must be a non-negative number, not -1"),
        (
            lambda: newton_distance(**{**constants, "hessian_lipschitz": math.nan}),
            "hessian_lipschitz must be .* not nan",
        ),
        (lambda: newton_distance(**{**constants, "strong_convexity": 0}), "strong_convexity must be a positive"),
        (lambda: classic_sigma(1, 1.5, 1e-5), "epsilon must be at most 1 .*not 1.5; use analytic_sigma"),
        (lambda: classic_sigma(-1, 1, 1e-5), "distance must be a non-negative number, not -1"),
        (lambda: classic_sigma(1, 1, 0), "delta must be a positive number below 1, not 0; it is a probability"),
        (lambda: analytic_sigma(math.inf, 1, 1e-5), "distance must be .* not inf"),
        (lambda: analytic_sigma(1, 0, 1e-5), "epsilon must be a positive number, not 0"),
        (lambda: analytic_sigma(1, 1, 1), "delta must be a positive number below 1, not 1"),
        (lambda: analytic_sigma(1, True, 0.1), "epsilon must be a positive number, not True"),
        (lambda: gaussian_delta(0, 1, 1), "sigma must be a positive number, not 0"),
        (lambda: gaussian_delta(1, 1, -1), "epsilon must be a non-negative number, not -1"),
        (lambda: gaussian_epsilon(1, "far", 0.1), "distance must be .* not 'far'"),
        (lambda: gaussian_epsilon(1, 1, 0.0), "delta must be a positive number below 1, not 0.0"),
        (lambda: certify(math.nan, 0.1, convex=True), "gradient_norm must be .* not nan; .* the model's loss"),
        (lambda: certify(1, -0.1, convex=True), "weight_decay must be a non-negative number, not -0.1"),
        (lambda: certify(1, 0.1, convex="yes"), "convex must be True or False, not 'yes'"),
        (lambda: certify(1, 0.1, convex=True, sigma=1.0), "together, not 1.0 and None; pass both or neither"),
        (lambda: certify(1, 0.1, convex=False, delta=0.1), "together, not None and 0.1"),
        (lambda: certify(1, 0.1, convex=False, sigma=0, delta=0.1), "sigma must be a positive number, not 0"),
        (lambda: certify(1, 0.1, convex=True, sigma=1, delta=2), "delta must be .* not 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
