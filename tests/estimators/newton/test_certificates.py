"""Random estimators, data, weights and rows: no certificate is below the true distance, and hardly anything is left."""

import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from newton_truth import distance
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.svm import LinearSVC, LinearSVR

from excise.estimators.kept import Data, Options, find_way

TOLERANCE = 1e-4
CASES = int(os.environ.get("EXCISE_CASES", "12"))  # of each kind; make cases takes 200
yes_or_no = st.booleans()
strength = st.floats(-3, 3).map(lambda power: 10.0**power)
weighted_classes = st.sampled_from([None, "balanced", {0: 1.0, 1: 2.0, 2: 0.5, 3: 3.0}])


def some(kind, **options):
    return st.builds(kind, **{k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in options.items()})


logistic = {"C": strength, "fit_intercept": yes_or_no, "class_weight": weighted_classes, "max_iter": 10_000}
glm = {"alpha": strength, "fit_intercept": yes_or_no, "max_iter": 10_000}
sgd = {"alpha": st.sampled_from([1e-4, 1e-2, 1.0]), "fit_intercept": yes_or_no, "average": yes_or_no, "random_state": 0}
svm = {"C": strength, "fit_intercept": yes_or_no, "intercept_scaling": st.sampled_from([0.5, 1.0, 10.0])}
KINDS = {
    "LogisticRegression": (
        "classes",
        some(LogisticRegression, solver=st.sampled_from(["lbfgs", "newton-cg", "newton-cholesky"]), **logistic),
    ),
    "LogisticRegression, averaged": (
        "classes",
        some(
            LogisticRegression,
            solver=st.sampled_from(["sag", "saga"]),
            random_state=0,
            **logistic | {"max_iter": 100},  # stops anywhere
        ),
    ),
    "LogisticRegression, liblinear": (
        "two classes",
        some(
            LogisticRegression,
            solver="liblinear",
            intercept_scaling=st.sampled_from([0.5, 1.0, 10.0]),
            dual=yes_or_no,
            random_state=0,
            **logistic,
        ),
    ),
    "SGDClassifier": (
        "classes",
        some(
            SGDClassifier,
            loss=st.sampled_from(
                ["log_loss", "squared_hinge", "modified_huber", "squared_error", "huber", "squared_epsilon_insensitive"]
            ),
            class_weight=weighted_classes,
            **sgd,
        ),
    ),
    "SGDRegressor": (
        "numbers",
        some(
            SGDRegressor,
            loss=st.sampled_from(["squared_error", "huber", "squared_epsilon_insensitive"]),
            epsilon=st.sampled_from([0.1, 1.0]),
            **sgd,
        ),
    ),
    "PoissonRegressor": ("counts", some(PoissonRegressor, **glm)),
    "GammaRegressor": ("positive", some(GammaRegressor, **glm)),
    "TweedieRegressor": ("positive", some(TweedieRegressor, power=st.sampled_from([0, 1, 1.3, 1.9, 2]), **glm)),
    "HuberRegressor": (
        "numbers",
        some(
            HuberRegressor,
            epsilon=st.sampled_from([1.1, 1.35, 3.0]),
            alpha=st.sampled_from([1e-4, 0.1, 10.0]),
            fit_intercept=yes_or_no,
            max_iter=10_000,
        ),
    ),
    "LinearSVC": (
        "classes",
        some(LinearSVC, dual=yes_or_no, class_weight=weighted_classes, random_state=0, max_iter=100_000, **svm),
    ),
    "LinearSVR": (
        "numbers",
        some(
            LinearSVR,
            loss="squared_epsilon_insensitive",
            epsilon=st.sampled_from([0.0, 0.5]),
            dual=yes_or_no,
            random_state=0,
            max_iter=100_000,
            **svm,
        ),
    ),
}


@st.composite
def cases(draw, what, estimators):
    """An estimator, data for it, and rows to take out: up to half of them, or all of one class."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = draw(st.integers(16, 40)), draw(st.integers(1, 4))
    X = rng.normal(size=(rows, columns)) + draw(st.sampled_from([0.0, 2.0]))
    signal = X @ rng.normal(size=columns)
    many = 2 if what == "two classes" else draw(st.integers(2, 4))
    y = {
        "counts": lambda: rng.poisson(np.exp(0.3 * signal)).astype(float),
        "positive": lambda: rng.gamma(2.0, np.exp(0.3 * signal)) + 1e-3,
        "numbers": lambda: signal + rng.standard_t(2, size=rows),
    }.get(what, lambda: (np.argsort(np.argsort(signal + rng.normal(size=rows))) * many) // rows)()
    weight = rng.exponential(size=rows) if draw(yes_or_no) else None
    gone = rng.choice(rows, draw(st.integers(1, rows // 2)), replace=False)
    if "classes" in what and many > 2 and draw(yes_or_no):
        gone = np.union1d(gone[:1], np.flatnonzero(y == draw(st.integers(0, many - 1))))
    if draw(yes_or_no):
        X = sparse.csr_array(X)
    return draw(estimators), Data(X, y, weight), np.sort(gone)


def check(case, ratios=None):
    """The certificate against the truth."""
    estimator, data, gone = case
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        estimator.fit(data.X, data.y, sample_weight=data.sample_weight)
    finish = any(issubclass(one.category, ConvergenceWarning) for one in said)
    finish = finish or getattr(estimator, "solver", "").startswith("sag")  # may stop anywhere
    finish = finish or (isinstance(estimator, LinearSVR) and estimator.dual)  # likewise
    rest = data.without(gone)
    if isinstance(estimator, HuberRegressor):  # of few rows, the scale falls to 0: there is no minimum
        assume(min(estimator.scale_, _scale(estimator, rest)) > 0.05)
    refit = find_way(estimator)(estimator, data, Options(finish=finish)).without(gone)
    true = distance(refit.estimator, rest.X, rest.y, rest.sample_weight)
    assert true <= refit.bound
    if "Rounding" in refit.words:
        length = np.linalg.norm(refit.estimator.coef_)
        assert refit.bound <= 1e-8 * (1 + length)
    elif not np.isnan(refit.moved):
        assert refit.bound <= TOLERANCE * (refit.moved - refit.bound)
    if ratios is not None:
        ratios.append(float(refit.bound / true) if true else np.inf)


def _scale(estimator, rest):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(estimator).fit(rest.X, rest.y, sample_weight=rest.sample_weight).scale_


def some_cases(count):
    healthy = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=healthy)


def run(name, count):
    ratios = []

    @some_cases(count)
    @given(cases(*KINDS[name]))
    def inner(case):
        check(case, ratios)

    inner()
    return ratios


@pytest.mark.parametrize("name", KINDS)
def test_no_certificate_is_below_the_true_distance(name):
    ratios = run(name, CASES)
    assert len(ratios) >= CASES
    print(name, "bound / distance, median:", np.median(ratios))
