"""What comes back equals a fresh fit on the other rows, in all that it learned: random tables, rows and parameters."""

import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from sklearn.base import clone
from unfitting_oracle import CLOSED_FORM, KINDS, assert_same, frozen, ordinary, problems

from excise import InputError, Unfitter, unfit

CASES = int(os.environ.get("EXCISE_CASES", "20"))  # of each kind; make cases takes 200
REQUESTS = 5 * CASES  # one after the other


@pytest.mark.parametrize("name", KINDS)
def test_equals_a_fit_on_the_other_rows(name):
    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(problems(name))
    def check(problem):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_problem(problem)

    check()


def check_problem(problem):
    estimator = fit_or_none(problem)
    assume(estimator is not None)
    before = frozen(estimator, problem.X, problem.y, problem.weights)
    fresh = fit_or_none(problem, problem.rows)
    if fresh is None:
        with pytest.raises(InputError, match="left"):
            unfit(estimator, problem.X, problem.y, problem.rows, **problem.given)
    else:
        done = unfit(estimator, problem.X, problem.y, problem.rows, **problem.given)
        assert_same(done.estimator, fresh)
        assert done.bound == done.share_left == 0
        assert done.rows.tolist() == done.gone.tolist() == problem.rows.tolist()
    assert frozen(estimator, problem.X, problem.y, problem.weights) == before


def fit_or_none(problem, gone=()):
    try:
        return problem.fit(gone)
    except (ValueError, IndexError):
        return None


@pytest.mark.parametrize("name", sorted(CLOSED_FORM))
def test_ordinary_data_need_no_fit(name):
    problem = ordinary(name)
    assert unfit(problem.fit(), problem.X, problem.y, problem.rows).words.startswith("Computed in closed form")


@pytest.mark.parametrize(
    ("name", "options", "classes"),
    [
        ("LinearRegression", {"fit_intercept": False}, None),
        ("Ridge", {"fit_intercept": False, "solver": "svd"}, None),
        ("RidgeClassifier", {"class_weight": "balanced"}, 2),
        ("RidgeClassifier", {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "fit_intercept": False}, 3),
        ("GaussianNB", {"var_smoothing": 1e-2}, 2),
        ("MultinomialNB", {"fit_prior": False}, 2),
        ("BernoulliNB", {"binarize": 1.0}, 2),
        ("ComplementNB", {"norm": True}, 2),
        ("LinearDiscriminantAnalysis by lsqr", {"shrinkage": 0.3}, 2),
        ("PCA", {"n_components": 2, "svd_solver": "full"}, None),
        ("PCA", {"n_components": 0.9, "whiten": True}, None),
        ("StandardScaler", {"with_mean": False}, None),
        ("KernelRidge", {"kernel": "rbf"}, None),
    ],
)
def test_weights_options_and_two_classes_need_no_fit_either(name, options, classes):
    problem = ordinary(name)
    problem.estimator = clone(problem.estimator).set_params(**options)
    problem.y = problem.y if classes is None else problem.y % classes
    if KINDS[name].weighted:
        problem.weights = np.random.default_rng(3).uniform(0, 3, 200)
    done = unfit(problem.fit(), problem.X, problem.y, problem.rows, **problem.given)
    assert done.words.startswith("Computed in closed form")
    assert_same(done.estimator, problem.fit(problem.rows), tolerance=1e-10)


@pytest.mark.parametrize("name", ["GaussianNB", "MultinomialNB", "BernoulliNB", "ComplementNB"])
@pytest.mark.filterwarnings("ignore")
def test_a_class_without_weight_stays_and_one_without_rows_goes(name):
    problem = ordinary(name)
    problem.weights = (problem.y != 0).astype(float)
    for rows in ([0, 1], np.flatnonzero(problem.y == 1)):
        done = unfit(problem.fit(), problem.X, problem.y, rows, **problem.given)
        assert_same(done.estimator, problem.fit(rows))
        assert done.words.startswith("Computed in closed form") == (
            name in ("MultinomialNB", "BernoulliNB", "ComplementNB")
        )


@pytest.mark.parametrize("name", sorted(set(KINDS) - CLOSED_FORM))
def test_a_fit_is_called_a_fit(name):
    problem = ordinary(name)
    assert unfit(problem.fit(), problem.X, problem.y, problem.rows).words.startswith("Fitted anew on the other rows")


@pytest.mark.parametrize("name", ["Ridge", "RidgeClassifier", "GaussianNB", "StandardScaler", "KernelRidge"])
def test_the_last_of_many_requests_is_as_exact_as_the_first(name):
    problem = ordinary(name)
    unfitter = Unfitter(problem.fit(), problem.X, problem.y).prepare()
    order = np.random.default_rng(1).permutation(200)[:150]
    for count, row in enumerate(order, 1):
        done = unfitter.unfit([row])
        assert done.gone.tolist() == sorted(order[:count].tolist())
        if count in (1, 75, 150):
            assert_same(done.estimator, problem.fit(order[:count]), tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "GaussianNB", "MultinomialNB", "PCA", "StandardScaler"])
def test_many_requests_do_not_drift(name):
    problem = ordinary(name, 2500, shift=3.0, outlier=True)
    order = np.random.default_rng(2).permutation(2500)[:REQUESTS]
    unfitter = Unfitter(problem.fit(), problem.X, problem.y).prepare()
    for row in order:
        done = unfitter.unfit([row])
    assert_same(done.estimator, unfit(problem.fit(), problem.X, problem.y, order).estimator, tolerance=0)
    assert_same(done.estimator, problem.fit(order), tolerance=1e-10)


def test_what_comes_back_does_not_depend_on_the_order_of_requests():
    problem = ordinary("Ridge")
    one, other = (Unfitter(problem.fit(), problem.X, problem.y) for _ in range(2))
    one.unfit([3]), one.unfit([190, 40])
    other.unfit([190, 3])
    assert_same(one.unfit([7]).estimator, other.unfit([40, 7]).estimator, tolerance=0)
