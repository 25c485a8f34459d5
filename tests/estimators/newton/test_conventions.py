"""What comes back is what scikit-learn's own ``fit`` on the other rows gives, if that is made to go on long enough."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from excise import unfit

CLASSIFIERS = [
    LogisticRegression(),
    LogisticRegression(C=10, class_weight="balanced", fit_intercept=False),
    LogisticRegression(solver="newton-cg", class_weight={0: 1, 1: 5, 2: 0.2}),
    LogisticRegression(solver="newton-cholesky"),
    LogisticRegression(solver="saga", random_state=0),
    LinearSVC(class_weight="balanced", intercept_scaling=3, random_state=0),
    LinearSVC(class_weight={0: 1, 1: 5, 2: 0.2}, fit_intercept=False, random_state=0),
]
BINARY = [
    LogisticRegression(solver="liblinear", intercept_scaling=3, class_weight="balanced"),
    LogisticRegression(solver="liblinear", dual=True, C=0.1, fit_intercept=False),
    LogisticRegression(C=np.inf),
]
REGRESSORS = [
    PoissonRegressor(alpha=0.1),
    GammaRegressor(alpha=0.1, fit_intercept=False),
    TweedieRegressor(power=1.5, alpha=0.1),
    TweedieRegressor(power=0, alpha=0.1),
    HuberRegressor(),
    HuberRegressor(epsilon=2, alpha=0.1, fit_intercept=False),
    LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.3, intercept_scaling=3, random_state=0),
]


def sample(classes, rows=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    signal = X @ [1.0, -1.0, 0.5] + rng.normal(size=rows)
    y = np.argsort(np.argsort(signal)) * classes // rows if classes else np.exp(0.4 * signal)
    return X, y, rng.exponential(size=rows)


def fitted(estimator, X, y, weight, tight=False):
    estimator = clone(estimator)
    if tight:
        estimator.set_params(tol=1e-11, max_iter=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tightest tolerance may not be reached
        return estimator.fit(X, y, sample_weight=weight)


def check_against_fit(estimator, X, y, weight, gone):
    done = unfit(fitted(estimator, X, y, weight), X, y, gone, sample_weight=weight, finish=True)
    left = np.setdiff1d(np.arange(len(y)), gone)
    fresh = fitted(estimator, X[left], y[left], None if weight is None else weight[left], tight=True)
    for name in ("coef_", "intercept_", "classes_", "scale_", "outliers_"):
        if hasattr(fresh, name):
            ours, theirs = getattr(done.estimator, name), getattr(fresh, name)
            assert np.shape(ours) == np.shape(theirs), name
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype, name
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert type(done.estimator.n_iter_) is type(fresh.n_iter_)
    np.testing.assert_allclose(done.estimator.predict(X), fresh.predict(X), rtol=1e-3)
    return done


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gone", [[3], list(range(0, 40, 2))])
@pytest.mark.parametrize("estimator", CLASSIFIERS + BINARY, ids=str)
def test_a_classifier_is_as_a_fit_on_the_other_rows_gives_it(estimator, gone, weighted):
    X, y, weight = sample(2 if estimator in BINARY else 3)
    check_against_fit(estimator, X, y, weight if weighted else None, gone)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gone", [[3], list(range(0, 40, 2))])
@pytest.mark.parametrize("estimator", REGRESSORS, ids=str)
def test_a_regressor_is_as_a_fit_on_the_other_rows_gives_it(estimator, gone, weighted):
    X, y, weight = sample(0)
    check_against_fit(estimator, X, y, weight if weighted else None, gone)


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=str)
def test_a_class_that_vanishes_leaves_what_a_fit_on_the_others_gives(estimator):
    X, y, _ = sample(3)
    done = check_against_fit(estimator, X, y, None, np.flatnonzero(y == 1))
    assert done.estimator.classes_.tolist() == [0, 2]
    assert np.isnan(done.moved)


def test_one_class_against_the_rest_by_another_estimator():
    X, y, _ = sample(3)
    whole = OneVsRestClassifier(LogisticRegression(solver="liblinear")).fit(X, y)
    for gone in ([0, 5, 9], np.flatnonzero(y == 0)):
        done = unfit(whole, X, y, gone)
        left = np.setdiff1d(np.arange(len(y)), gone)
        fresh = clone(whole).set_params(estimator__tol=1e-11).fit(X[left], y[left])
        assert done.estimator.classes_.tolist() == fresh.classes_.tolist()
        np.testing.assert_allclose(done.estimator.decision_function(X), fresh.decision_function(X), atol=1e-4)
        np.testing.assert_array_equal(done.estimator.predict(X), fresh.predict(X))


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
def test_descent_is_towards_the_same_objective(loss):
    X, y, _ = sample(3)
    slow = SGDClassifier(
        loss, alpha=0.1, tol=None, max_iter=4000, random_state=0, class_weight="balanced", average=True
    )
    done = unfit(slow.fit(X, y), X, y, [4, 7])
    left = np.setdiff1d(np.arange(len(y)), [4, 7])
    np.testing.assert_allclose(done.estimator.coef_, clone(slow).fit(X[left], y[left]).coef_, atol=0.02)
    assert "does not go to the minimum itself" in done.words
    np.testing.assert_array_equal(done.estimator.coef_, done.estimator._average_coef)
    done.estimator.partial_fit(X, y)  # goes on from there


def test_a_regressor_by_descent_is_towards_the_same_objective():
    X, y, weight = sample(0)
    slow = SGDRegressor("huber", alpha=0.1, epsilon=0.5, tol=None, max_iter=4000, random_state=0, average=True)
    done = unfit(slow.fit(X, y, sample_weight=weight), X, y, [4], sample_weight=weight)
    left = np.setdiff1d(np.arange(len(y)), [4])
    fresh = clone(slow).fit(X[left], y[left], sample_weight=weight[left])
    np.testing.assert_allclose(done.estimator.coef_, fresh.coef_, atol=0.02)
    np.testing.assert_allclose(done.estimator.intercept_, fresh.intercept_, atol=0.02)


def test_single_precision_stays_and_is_in_the_bound():
    X, y, _ = sample(3)
    X = X.astype(np.float32)
    done = unfit(LogisticRegression(max_iter=1000).fit(X, y), X, y, [0])
    assert done.estimator.coef_.dtype == done.estimator.intercept_.dtype == np.float32
    exact = unfit(LogisticRegression(max_iter=1000).fit(X.astype(float), y), X.astype(float), y, [0]).estimator
    off = np.hypot(
        np.linalg.norm(exact.coef_ - done.estimator.coef_), np.linalg.norm(exact.intercept_ - done.estimator.intercept_)
    )
    assert 0 < off <= done.bound < 1e-6


def test_a_sparse_table_gives_the_same():
    X, y, _ = sample(3)
    X[np.abs(X) < 0.7] = 0
    dense = unfit(LogisticRegression().fit(X, y), X, y, [0, 1])
    thin = unfit(LogisticRegression().fit(X, y), sparse.csc_array(X), y, [0, 1])
    np.testing.assert_allclose(thin.estimator.coef_, dense.estimator.coef_, atol=thin.bound + dense.bound)


def test_the_estimator_is_left_alone_and_what_comes_back_is_one_like_it():
    X, y, _ = sample(3)
    given = LogisticRegression().fit(X, y)
    before = pickle.dumps(given)
    done = unfit(given, X, y, [0]).estimator
    assert pickle.dumps(given) == before
    assert done.get_params() == given.get_params()
    assert vars(pickle.loads(pickle.dumps(done))).keys() == vars(given).keys()
    assert not np.shares_memory(done.coef_, given.coef_)
