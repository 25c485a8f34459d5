"""The search on a sample: chosen on some rows, measured on others, and what is said of both."""

import itertools
import warnings

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampled_tables import Watched, table

from excise import Tolerance, UndefinedWarning, foci, lfoci


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), discrete=st.booleans(), more=st.integers(0, 1000))
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_a_sample_as_large_as_the_table_is_the_table(seed, discrete, more):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (150, 4)) if discrete else rng.standard_normal((150, 4))
    y = X[:, 0] * X[:, 1] + rng.standard_normal(150)
    plain, sampled = (foci(X, y, random_state=seed, n_jobs=1, **options) for options in ({}, {"sample": 150 + more}))
    np.testing.assert_array_equal(sampled.indices, plain.indices)
    np.testing.assert_array_equal(sampled.scores, plain.scores)
    np.testing.assert_array_equal(sampled.totals, plain.totals)
    assert sampled.sampling.rows == sampled.sampling.table_rows == 150
    assert not sampled.sampling.fresh
    assert plain.errors is None
    assert plain.sampling is None


def test_columns_are_chosen_on_some_rows_and_measured_on_others():
    X, y = table(5000)
    watched = Watched(X)
    found = foci(watched, y, sample=120, random_state=0)
    searched, measured = watched.read
    assert len(set(searched) | set(measured)) == 240
    np.testing.assert_array_equal(found.indices, foci(X[searched], y[searched]).indices)
    Z = X[measured][:, found.indices]
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    slow = [reference.codec(y[measured], Z[:, : k + 1]) for k in range(len(found))]
    np.testing.assert_allclose(found.totals, slow, atol=1e-12)
    np.testing.assert_allclose(found.scores[1:], [(b - a) / (1 - a) for a, b in itertools.pairwise(slow)], atol=1e-12)
    assert (found.sampling.searched, found.sampling.measured, found.sampling.rows) == (120, 120, 240)
    assert str(found.sampling).startswith(
        "Searched 120 of 5,000 rows, drawn at random; T is measured on 120 others, to ± "
    )


def test_nothing_is_chosen_where_nothing_tells():
    rng = np.random.default_rng(7)
    for seed in range(20):
        X, y = rng.standard_normal((4000, 1)), rng.standard_normal(4000)
        found = foci(X, y, sample=1500, random_state=seed)
        if len(found) == 0:
            assert found.errors.shape == found.sampling.low.shape == found.sampling.stability.shape == (0,)
            assert 0 < found.sampling.half_width < 0.1  # of the best column
            return
    raise AssertionError("chosen 20 times of 20")


def test_stability_tells_signal_from_noise():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8000, 12))
    found = foci(X, X[:, 4] + 0.3 * rng.standard_normal(8000), sample=2000, random_state=0)
    assert found.indices[0] == 4
    assert found.sampling.stability[0] == 1
    assert found.sampling.stability[1:].max(initial=0) < 1


def test_columns_that_are_constant_in_the_sample_are_left_out_and_said():
    X, y = table(4000)
    X = np.column_stack((np.zeros(4000), X, np.ones(4000)))
    X[17, 0] = 1.0  # in one of 4,000 rows
    found = foci(X, y, sample=300, random_state=2, max_features=6, stop=False)
    assert found.sampling.left_out == (0, 5)
    assert sorted(found.indices.tolist()) == [1, 2, 3, 4]


def test_rare_values_leave_errors_undefined_and_nothing_else():
    """Twenty rows of 2,000 are 1: some sixteenths of the sample have none."""
    rng = np.random.default_rng(0)
    y = np.zeros(2000)
    y[rng.choice(2000, 20, replace=False)] = 1
    X = np.column_stack((y + 0.1 * rng.standard_normal(2000), rng.standard_normal(2000)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = foci(X, y, sample=900, random_state=0)
    assert found.indices[0] == 0
    assert np.isfinite(found.totals[0])
    assert np.isnan(found.errors[0])
    assert np.isnan(found.sampling.half_width)


def test_constant_y():
    X, _ = table(1000)
    with pytest.warns(UndefinedWarning, match="y is constant"):
        found = foci(X, np.ones(1000), sample=200)
    assert len(found) == 0
    assert np.isnan(found.sampling.half_width)


def test_noise_is_added_to_the_rows_that_measure_too():
    X, y = table(6000)
    clear, blurred = (lfoci(X, y, noise=noise, sample=2000, random_state=0, max_features=1) for noise in (None, 2.0))
    assert blurred.totals[0] < 0.5 * clear.totals[0]
    labels = np.random.default_rng(0).integers(0, 2, 6000)
    found = lfoci(labels, labels, perturb="all", sample=2000, random_state=0)
    assert found.totals[0] == pytest.approx(0.5, abs=0.1)  # 1 - 1/K


def test_columns_as_given_are_measured_as_given():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2)) * [1, 1e-6]
    y = X[:, 0] + 1e6 * X[:, 1]
    options = {"sample": 1000, "max_features": 2, "stop": False, "random_state": 0}
    assert foci(X, y, **options).totals[1] > foci(X, y, standardize=False, **options).totals[1] + 0.2


@pytest.mark.slow
def test_same_seed_same_answer_whatever_the_threads():
    X, y = table(5000)
    for sample in (700, Tolerance(0.05)):
        results = [foci(X, y, sample=sample, random_state=4, n_jobs=n_jobs) for n_jobs in (1, 3)]
        np.testing.assert_array_equal(results[0].totals, results[1].totals)
        np.testing.assert_array_equal(results[0].sampling.high, results[1].sampling.high)
    assert foci(X, y, sample=700, random_state=5).totals[0] != results[0].totals[0]


def test_what_comes_back_is_read_only():
    found = foci(*table(1000), sample=300, random_state=0)
    for array in (found.errors, found.totals, found.sampling.low, found.sampling.stability):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
