"""Requests one after the other, many parameters, and what is refused."""

import os

import numpy as np
import pytest
from newton_truth import distance
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import (
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.utils.estimator_checks import check_estimator

from excise import Unfitter, unfit
from excise.errors import InputError, NotYetSupportedError
from excise.estimators.newton import steps

REQUESTS = 5 * int(os.environ.get("EXCISE_CASES", "20"))  # one after the other; make cases takes a thousand


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def test_errors_do_not_add_up_over_requests(cancer):
    X, y = cancer
    unfitter = Unfitter(LogisticRegression().fit(X, y), X, y)
    for row in range(0, 200, 20):
        done = unfitter.unfit([row])
        left = np.setdiff1d(np.arange(len(y)), done.gone)
        true = distance(done.estimator, X[left], y[left])
        assert true <= done.bound
        assert done.bound <= 1e-4 * done.moved or "Rounding" in done.words
    np.testing.assert_allclose(
        done.estimator.coef_, unfit(LogisticRegression().fit(X, y), X, y, done.gone).estimator.coef_, atol=1e-6
    )


@pytest.mark.parametrize("largest", [steps.LARGEST, 0])
def test_many_parameters_are_certified_by_conjugate_gradients(largest, monkeypatch):
    monkeypatch.setattr(steps, "LARGEST", largest)
    monkeypatch.setattr(steps, "DENSE", 10)
    X, y = load_digits(return_X_y=True)
    X, y = X[:400, 18:30] / 16, y[:400]
    for estimator in (LogisticRegression(), LogisticRegression(fit_intercept=False, class_weight="balanced")):
        unfitter = Unfitter(estimator.fit(X, y), X, y, finish=True)
        for gone in ([0], [5, 6, 7], list(range(100, 200))):
            done = unfitter.unfit(gone)
            left = np.setdiff1d(np.arange(len(y)), done.gone)
            true = distance(done.estimator, X[left], y[left])
            assert true <= done.bound <= 1e-4 * done.moved
            assert done.bound <= 3 * true


@pytest.mark.parametrize("size", [3, 40])
def test_the_curvature_told_by_the_penalty_is_never_above_the_smallest(size):
    rng = np.random.default_rng(size)
    X = rng.normal(size=(60, size)) + 1
    for classes in (2, 3):
        y = rng.integers(classes, size=60)
        estimator = LogisticRegression(C=0.1).fit(X, y)
        kept = Unfitter(estimator, X, y, finish=True)._prepared()
        one = kept.kind.problem(np.array([], dtype=int)).objectives[0]
        point = one.at(kept.kind.read(estimator, kept.kind.problem(np.array([], dtype=int)))[0])
        least = np.linalg.eigvalsh(point.hessian())[0]
        assert 0.05 * least <= steps.least_by_penalty(point) <= least * (1 + 1e-9)
        np.testing.assert_allclose(point.diagonal(), np.diag(point.hessian()), rtol=1e-12)
        direction = rng.normal(size=one.size)
        np.testing.assert_allclose(point.product(direction), point.hessian() @ direction, rtol=1e-10, atol=1e-10)


def test_a_scaler_before_it_changes_too():
    X, y = load_breast_cancer(return_X_y=True)
    whole = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    done = unfit(whole, X, y, [3, 17])
    left = np.setdiff1d(np.arange(len(y)), [3, 17])
    scaler = StandardScaler().fit(X[left])
    assert distance(done.estimator[-1], scaler.transform(X[left]), y[left]) <= done.bound
    assert done.bound <= 1e-4 * done.moved


@pytest.mark.parametrize("solver", ["lbfgs", "liblinear", "newton-cg", "newton-cholesky"])
def test_one_percent_of_wrong_labels_is_noticed(cancer, solver):
    X, y = cancer
    estimator = LogisticRegression(solver=solver).fit(X, y)
    wrong = y.copy()
    wrong[::100] = 1 - wrong[::100]
    with pytest.raises(InputError, match="not those it was fitted on"):
        unfit(estimator, X, wrong, [0])
    with pytest.raises(InputError, match="not those it was fitted on"):
        unfit(estimator, X, y, [0], sample_weight=np.linspace(0.5, 1.5, len(y)))


@pytest.mark.parametrize("estimator", [LinearSVC(dual=False), LinearSVC(dual=True, max_iter=100_000)], ids=str)
def test_wrong_labels_of_a_support_vector_machine_are_noticed(cancer, estimator):
    X, y = cancer
    wrong = y.copy()
    wrong[::100] = 1 - wrong[::100]
    estimator.fit(X, y)
    unfit(estimator, X, y, [0])
    with pytest.raises(InputError, match="not those it was fitted on"):
        unfit(estimator, X, wrong, [0])


@pytest.mark.parametrize("estimator", [PoissonRegressor(), HuberRegressor(max_iter=1000)], ids=str)
def test_wrong_targets_are_noticed(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = rng.poisson(np.exp(X @ [0.5, -0.5, 0.2, 0.0])).astype(float)
    estimator.fit(X, y)
    unfit(estimator, X, y, [0])
    with pytest.raises(InputError, match="not those it was fitted on"):
        unfit(estimator, X, np.roll(y, 1), [0])


def test_a_solver_that_was_stopped_is_said_to_be_and_can_be_finished(cancer):
    X, y = cancer
    with pytest.warns(match="failed to converge"):
        early = LogisticRegression(max_iter=3).fit(X, y)
    with pytest.raises(InputError, match=r"max_iter=3, .* from the minimum .* finish=True"):
        unfit(early, X, y, [0])
    hard = int(np.argmin(early.predict_proba(X)[np.arange(len(y)), y]))
    done = unfit(early, X, y, [hard], finish=True)
    assert distance(done.estimator, np.delete(X, hard, 0), np.delete(y, hard)) <= done.bound <= 1e-4 * done.moved
    late = unfit(LogisticRegression().fit(X, y), X, y, [hard])
    assert done.moved == pytest.approx(late.moved, rel=1e-3)  # counted from the minimum


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(l1_ratio=1, solver="liblinear"),
        LogisticRegression(l1_ratio=0.5, solver="saga", max_iter=10_000),
        LinearSVC(loss="hinge", max_iter=100_000),
        LinearSVC(penalty="l1"),
        LinearSVC(multi_class="crammer_singer", max_iter=100_000),
        SGDClassifier(random_state=0),
        SGDClassifier("perceptron", random_state=0),
        SGDClassifier("log_loss", penalty="l1", random_state=0),
        SGDClassifier("log_loss", penalty="elasticnet", random_state=0),
        SGDClassifier("log_loss", early_stopping=True, random_state=0),
        SGDRegressor("epsilon_insensitive", random_state=0),
        LinearSVR(max_iter=100_000, random_state=0),
        TweedieRegressor(power=3),
        TweedieRegressor(power=0, link="log"),
        TweedieRegressor(power=1, link="identity"),
    ],
    ids=str,
)
def test_what_is_not_smooth_or_not_convex_is_refused(estimator, cancer):
    X, y = cancer
    X, y = X[:60, :3], y[:60] + 1
    with pytest.raises(NotYetSupportedError, match=r"estimator: .*(use|fit others anew)"):
        unfit(estimator.fit(X, y), X, y, [0])


def test_no_minimum_is_no_answer():
    X, y = np.linspace(-1, 1, 20)[:, None], np.repeat([0, 1], 10)
    y[9:11] = [1, 0]  # the only rows that keep the classes from being separable
    estimator = LogisticRegression(C=np.inf).fit(X, y)
    unfit(estimator, X, y, [0])
    with pytest.raises(InputError, match="separable"):
        unfit(estimator, X, y, [9, 10])
    doubled = np.column_stack([X, X])
    with pytest.raises(InputError, match="columns depend on each other"):
        unfit(SGDRegressor(penalty=None, random_state=0).fit(doubled, y), doubled, y, [0])


def test_the_last_class_but_one_may_not_go(cancer):
    X, y = cancer
    with pytest.raises(InputError, match="only the class"):
        unfit(LogisticRegression().fit(X, y), X, y, np.flatnonzero(y == 0))


def test_other_data_are_told_by_shape_and_classes(cancer):
    X, y = cancer
    estimator = LogisticRegression().fit(X, y)
    with pytest.raises(InputError, match="columns"):
        unfit(estimator, X[:, 1:], y, [0])
    with pytest.raises(InputError, match="classes"):
        unfit(estimator, X, y + 1, [0])
    with pytest.raises(InputError, match="sample_weight"):
        unfit(estimator, X, y, [0], sample_weight=-np.ones(len(y)))


def test_a_row_without_influence_moves_nothing_that_rounding_would_not(cancer):
    X, y = cancer
    weight = np.ones(len(y))
    weight[7] = 0
    done = unfit(LogisticRegression().fit(X, y, sample_weight=weight), X, y, [7], sample_weight=weight)
    assert done.moved <= 1e-9
    assert done.bound <= 1e-9


@pytest.mark.parametrize("classes", [2, 3])
def test_what_rows_add_to_the_hessian_and_what_is_left_of_it(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(classes, size=60)
    estimator = LogisticRegression(class_weight="balanced").fit(X, y)
    kept = Unfitter(estimator, X, y, finish=True)._prepared()
    everything, some = kept.kind.problem(np.array([], dtype=int)), kept.kind.problem(np.arange(5))
    start = kept.kind.read(estimator, everything)[0]
    before, after = everything.objectives[0].at(start), some.objectives[0].at(1.1 * start)
    parts = before.parts(np.arange(5))
    rest = before.hessian() - parts @ parts.T
    share = after.exceeds(before)
    assert 0.3 < share < 1
    assert np.linalg.eigvalsh(after.hessian() - share * rest)[0] >= -1e-10
    everything_but_gone = everything.objectives[0].at(start)
    assert everything_but_gone.exceeds(before) == 1


def test_a_request_that_takes_away_most_of_the_curvature_gets_a_factor_anew(monkeypatch):
    monkeypatch.setattr(steps, "DENSE", 2)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3)) + 3
    y = (X @ [1.0, 1.0, -1.0] > 3).astype(int)
    noisy = np.arange(0, 300, 6)
    y[noisy] = 1 - y[noisy]
    weight = np.where(np.isin(np.arange(300), noisy), 1.0, 3.0)
    unfitter = Unfitter(
        LogisticRegression(C=1e6, max_iter=10_000).fit(X, y, weight), X, y, sample_weight=weight, finish=True
    )
    for gone in (noisy[:1], noisy[1:]):  # at last they are separable, and the weights many times as large
        done = unfitter.unfit(gone)
        left = np.setdiff1d(np.arange(300), done.gone)
        assert distance(done.estimator, X[left], y[left], weight[left]) <= done.bound <= 1e-4 * done.moved


@pytest.mark.slow
def test_the_last_of_many_requests_is_as_exact_as_the_first():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4))
    y = (X[:, 0] + rng.normal(size=1500) > 0).astype(int)
    unfitter = Unfitter(LogisticRegression(tol=1e-8).fit(X, y), X, y).prepare()
    for row in range(REQUESTS):
        done = unfitter.unfit([row])
        assert done.share_left <= 1e-4 or "ounding" in done.words
    assert distance(done.estimator, X[REQUESTS:], y[REQUESTS:]) <= done.bound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [LogisticRegression(), PoissonRegressor()])
def test_what_comes_back_passes_the_checks_of_scikit_learn_that_the_original_does(estimator, cancer):
    X, y = cancer
    original = estimator.fit(X[:, :5], y)
    back = unfit(original, X[:, :5], y, [3, 4], finish=True).estimator

    def outcomes(one):
        return {(found["check_name"], found["status"]) for found in check_estimator(one, on_fail=None, on_skip=None)}

    assert outcomes(back) == outcomes(original)
