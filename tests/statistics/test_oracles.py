"""Values known from elsewhere: closed forms, published figures, exhaustive enumeration."""

from itertools import permutations

import numpy as np
import pytest
import reference

from excise import codec, foci, lcodec, xi
from excise.statistics._neighbors import nearest

ANSCOMBE_X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
ANSCOMBE_Y = {
    1: [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68],
    2: [9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74],
    3: [7.46, 6.77, 12.74, 7.11, 7.81, 8.84, 6.08, 5.39, 8.15, 6.42, 5.73],
}


def sum_modulo_one(d, n, seed):
    X = np.random.default_rng(seed).random((n, d))
    return X, X.sum(axis=1) % 1


def test_sum_modulo_one_is_only_known_from_all_its_terms():
    X, y = sum_modulo_one(2, 20_000, seed=0)
    assert codec(y, X[:, 0]) == pytest.approx(0, abs=0.02)
    assert codec(y, X) == pytest.approx(1, abs=0.03)
    assert codec(y, X[:, 1], X[:, 0]) == pytest.approx(1, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "n", "expected"),
    [(2, 1000, 0.909), (2, 10_000, 0.974), (3, 1000, 0.728), (3, 10_000, 0.872), (4, 1000, 0.502), (4, 10_000, 0.712)],
)
def test_bias_of_the_sum_modulo_one(d, n, expected):
    values = [codec(y, X) for X, y in (sum_modulo_one(d, n, seed) for seed in range(60 if n == 1000 else 8))]
    assert np.mean(values) == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "expected"), [(0.5, 0.14470), (0.8, 0.41808)])
def test_xi_of_a_gaussian(rho, expected):
    assert 3 / np.pi * np.arcsin((1 + rho**2) / 2) - 0.5 == pytest.approx(expected, abs=1e-5)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(200_000)
    y = rho * x + np.sqrt(1 - rho**2) * rng.standard_normal(200_000)
    assert xi(x, y) == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
def test_conditional_dependence_of_a_gaussian_sum():
    rng = np.random.default_rng(0)
    x, z, e = rng.standard_normal((3, 100_000))
    assert codec(x + z + e, z, x) == pytest.approx(0.30364, abs=0.012)


@pytest.mark.parametrize("seed", range(5))
def test_conditional_from_unconditional_without_ties_in_y(seed):
    rng = np.random.default_rng(seed)
    x, z, y = rng.standard_normal((100, 2)), rng.standard_normal(100), rng.standard_normal(100)
    t_x, t_xz = codec(y, x), codec(y, np.column_stack((x, z)))
    assert codec(y, z, x) == pytest.approx((t_xz - t_x) / (1 - t_x), abs=1e-12)


def test_mean_of_codec_over_all_permutations():
    z = [0.0, 1.0, 3.0, 7.0, 8.5, 12.0]
    values = [codec(y, z) for y in permutations(range(6))]
    assert np.mean(values) == pytest.approx(-1 / 5, abs=1e-12)


def test_mean_and_variance_of_xi_over_all_permutations():
    n = 6
    values = [xi(range(n), y) for y in permutations(range(n))]
    assert np.mean(values) == pytest.approx(0, abs=1e-12)
    assert np.var(values) == pytest.approx((n - 2) * (4 * n - 7) / (10 * (n - 1) ** 2 * (n + 1)), abs=1e-12)


@pytest.mark.parametrize("n", [3, 10, 101])
def test_xi_of_a_variable_with_itself(n):
    x = np.random.default_rng(n).standard_normal(n)
    assert xi(x, x) == pytest.approx((n - 2) / (n + 1), abs=1e-12)


def test_codec_of_three_points():
    assert codec([1, 2, 3], [0, 2, 3]) == 0.25


def test_anscombe():
    assert xi(ANSCOMBE_X, ANSCOMBE_Y[1]) == pytest.approx(0.275, abs=1e-12)
    assert xi(ANSCOMBE_Y[1], ANSCOMBE_X) == pytest.approx(0.25, abs=1e-12)
    assert xi(ANSCOMBE_X, ANSCOMBE_Y[2]) == pytest.approx(0.6, abs=1e-12)
    assert xi(ANSCOMBE_X, ANSCOMBE_Y[3]) == pytest.approx(0.725, abs=1e-12)


@pytest.mark.slow
def test_lattice_with_conditional_ties():
    x, z = (grid.ravel() for grid in np.meshgrid(np.arange(30), np.arange(30)))
    y = 3 * np.sin(0.2 * x) + 2 * np.cos(0.2 * z)
    values = [codec(y, z, x, random_state=seed) for seed in range(200)]
    assert np.mean(values) == pytest.approx(0.803, abs=0.003)
    assert 0.005 < np.std(values) < 0.015


@pytest.mark.parametrize("K", [2, 5])
def test_perturbing_a_discrete_y_changes_the_estimand(K):
    y = np.repeat(np.arange(K), 2000)
    assert lcodec(y, y, random_state=0) == 1.0
    assert codec(y, y, random_state=0) == 1.0
    assert lcodec(y, y, perturb="all", random_state=0) == pytest.approx(1 - 1 / K, abs=0.03)


def test_ties_are_broken_uniformly():
    """Among the other duplicates, and among all equally near rows."""
    points = np.array([0, 0, 0, 0, 1, 3, 3, 5], dtype=float)[:, None]
    counts = np.zeros((8, 8))
    draws = 2000
    for key in range(draws):
        counts[range(8), nearest(points, np.uint64(key))] += 1
    expected = np.zeros((8, 8))
    expected[:4, :4] = (1 - np.eye(4)) / 3
    expected[4, :4] = 1 / 4
    expected[[5, 6], [6, 5]] = 1
    expected[7, [5, 6]] = 1 / 2
    np.testing.assert_allclose(counts / draws, expected, atol=0.025)


@pytest.mark.slow
def test_tied_distances_are_broken_uniformly_in_the_joint_space():
    points = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [0, -1]], dtype=float)
    draws = 2000
    counts = np.zeros(6)
    for key in range(draws):
        counts[nearest(points, np.uint64(key))[0]] += 1
    np.testing.assert_allclose(counts / draws, [0, 0.2, 0.2, 0.2, 0.2, 0.2], atol=0.04)


def test_float32_far_from_zero_finds_the_right_neighbors():
    rng = np.random.default_rng(0)
    points = (100 + rng.standard_normal((500, 3))).astype(np.float32)
    np.testing.assert_array_equal(nearest(points.astype(float), np.uint64(0)), reference.nearest(points))
    y = points[:, 0] + points[:, 2]
    exact = foci(points.astype(float), y.astype(float), random_state=0)
    single = foci(points, y, random_state=0)
    np.testing.assert_array_equal(exact.indices, single.indices)
    np.testing.assert_array_equal(exact.scores, single.scores)


def test_foci_finds_a_known_blanket():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 20))
    y = X[:, 0] * X[:, 1] + X[:, 0] - X[:, 2] + 0.1 * rng.standard_normal(2000)
    assert set(foci(X, y).indices.tolist()) == {0, 1, 2}
