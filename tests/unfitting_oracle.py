"""Oracles for unfitting: random estimators with data for them, and a comparison of all that two of them learned."""

import pickle
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestCentroid
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

EXACT = 1e-8  # relative, of each attribute

yes_or_no = st.booleans()
strength = st.floats(1e-3, 1e3)


def one_of(*values):
    """Any of them."""
    return st.sampled_from(values)


class Kind(NamedTuple):
    """What is tested of a type."""

    holds: str  # numbers, numbers with gaps, counts or categories, in X
    target: str  # real, class or none
    weighted: bool  # whether fit takes weights
    plain: BaseEstimator
    drawn: dict  # parameters: strategies


KINDS = {
    "LinearRegression": Kind("numbers", "real", True, LinearRegression(), {"fit_intercept": yes_or_no}),
    "Ridge": Kind(
        "numbers",
        "real",
        True,
        Ridge(),
        {"alpha": strength, "fit_intercept": yes_or_no, "solver": one_of("auto", "svd", "cholesky", "lsqr")},
    ),
    "RidgeClassifier": Kind(
        "numbers",
        "class",
        True,
        RidgeClassifier(),
        {"alpha": strength, "fit_intercept": yes_or_no, "class_weight": one_of(None, "balanced")},
    ),
    "GaussianNB": Kind("numbers", "class", True, GaussianNB(), {"var_smoothing": one_of(1e-9, 1e-3)}),
    "MultinomialNB": Kind("counts", "class", True, MultinomialNB(), {"alpha": strength, "fit_prior": yes_or_no}),
    "BernoulliNB": Kind(
        "counts",
        "class",
        True,
        BernoulliNB(),
        {"alpha": strength, "binarize": one_of(0.0, 1.0), "fit_prior": yes_or_no},
    ),
    "ComplementNB": Kind("counts", "class", True, ComplementNB(), {"alpha": strength, "norm": yes_or_no}),
    "CategoricalNB": Kind("categories", "class", True, CategoricalNB(min_categories=4), {"alpha": strength}),
    "LinearDiscriminantAnalysis by lsqr": Kind(
        "numbers", "class", False, LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": one_of(None, 0.2, "auto")}
    ),
    "LinearDiscriminantAnalysis": Kind(
        "numbers", "class", False, LinearDiscriminantAnalysis(), {"solver": one_of("svd", "eigen")}
    ),
    "QuadraticDiscriminantAnalysis": Kind(
        "numbers", "class", False, QuadraticDiscriminantAnalysis(), {"reg_param": one_of(0.0, 0.1)}
    ),
    "PCA": Kind(
        "numbers",
        "none",
        False,
        PCA(),
        {
            "n_components": one_of(None, 1, 0.7, "mle"),
            "whiten": yes_or_no,
            "svd_solver": one_of("auto", "full", "covariance_eigh"),
        },
    ),
    "StandardScaler": Kind("gaps", "none", True, StandardScaler(), {"with_mean": yes_or_no, "with_std": yes_or_no}),
    "MinMaxScaler": Kind("gaps", "none", False, MinMaxScaler(), {"clip": yes_or_no}),
    "MaxAbsScaler": Kind("gaps", "none", False, MaxAbsScaler(), {}),
    "RobustScaler": Kind("gaps", "none", False, RobustScaler(), {"with_centering": yes_or_no}),
    "SimpleImputer": Kind("gaps", "none", False, SimpleImputer(), {"strategy": one_of("mean", "median")}),
    "Normalizer": Kind("numbers", "none", False, Normalizer(), {}),
    "OneHotEncoder": Kind("categories", "none", False, OneHotEncoder(), {"sparse_output": yes_or_no}),
    "OrdinalEncoder": Kind("categories", "none", False, OrdinalEncoder(), {}),
    "KNeighborsClassifier": Kind(
        "numbers", "class", False, KNeighborsClassifier(), {"algorithm": one_of("auto", "brute", "kd_tree")}
    ),
    "KNeighborsRegressor": Kind("numbers", "real", False, KNeighborsRegressor(), {"n_neighbors": one_of(1, 3)}),
    "NearestCentroid": Kind("numbers", "class", False, NearestCentroid(), {"metric": one_of("euclidean", "manhattan")}),
    "KernelRidge": Kind(
        "numbers", "real", True, KernelRidge(), {"alpha": strength, "kernel": one_of("rbf", "linear", "laplacian")}
    ),
    "GaussianProcessRegressor": Kind(
        "numbers",
        "real",
        False,
        GaussianProcessRegressor(kernel=RBF(), alpha=0.1, optimizer=None),
        {"normalize_y": yes_or_no},
    ),
}
CLOSED_FORM = {
    "LinearRegression",
    "Ridge",
    "RidgeClassifier",
    "GaussianNB",
    "MultinomialNB",
    "BernoulliNB",
    "ComplementNB",
    "LinearDiscriminantAnalysis by lsqr",
    "PCA",
    "StandardScaler",
    "KernelRidge",
}


class Problem:
    """An estimator with its data and the rows that shall go."""

    def __init__(self, estimator, X, y, weights, rows):
        self.estimator, self.X, self.y, self.weights, self.rows = estimator, X, y, weights, np.sort(rows)

    def __repr__(self):
        return f"{self.estimator}, X {self.X.shape}, weights {self.weights is not None}, rows {self.rows.tolist()}"

    @property
    def given(self):
        return {} if self.weights is None else {"sample_weight": self.weights}

    def fit(self, gone=()):
        """A fresh fit on the other rows."""
        stay = np.setdiff1d(np.arange(self.X.shape[0]), gone)
        given = {name: value[stay] for name, value in self.given.items()}
        return clone(self.estimator).fit(self.X[stay], None if self.y is None else self.y[stay], **given)


@st.composite
def problems(draw, name):
    """Tables of 8 to 60 rows; means far from 0, rows far out, whole numbers, weights, up to 4 classes."""
    kind = KINDS[name]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, p = draw(st.integers(8, 60)), draw(st.integers(1, 5))
    X = table(rng, kind.holds, n, p, shift=draw(one_of(0.0, 1.0, 1000.0)), outlier=draw(yes_or_no))
    if draw(st.integers(0, 4)) == 0:
        X[:, 0] = X[0, 0]  # a column that does not vary
    y, codes = None, rng.integers(0, draw(st.integers(2, 4)), n)
    if kind.target == "real":
        y = rng.normal(size=n) if draw(yes_or_no) else rng.normal(size=(n, draw(st.integers(1, 3))))
    if kind.target == "class":
        y = codes if draw(yes_or_no) else np.array(["ant", "bee", "cat", "dog"])[codes]
    weights = rng.uniform(0.1, 3.0, n) if kind.weighted and draw(yes_or_no) else None
    if weights is not None and draw(yes_or_no):
        weights[rng.uniform(size=n) < 0.2] = 0.0
    if kind.target == "class" and draw(st.integers(0, 3)) == 0:
        rows = np.flatnonzero(codes == codes[0])  # a class vanishes
    else:
        rows = rng.choice(n, draw(st.integers(1, n // 2)), replace=False)
    estimator = clone(kind.plain).set_params(**{key: draw(values) for key, values in kind.drawn.items()})
    return Problem(estimator, X, y, weights, rows)


def ordinary(name, n=200, **options):
    """A problem without pitfalls, with five rows to go."""
    kind = KINDS[name]
    rng = np.random.default_rng(0)
    X = table(rng, kind.holds, n, 4, **options)
    y = {"real": rng.normal(size=n), "class": rng.integers(0, 3, n), "none": None}[kind.target]
    return Problem(kind.plain, X, y, None, np.arange(5))


def table(rng, holds, n, p, shift=0.0, outlier=False):
    """Random X of a kind."""
    if holds == "counts":
        return rng.poisson(1.0, size=(n, p)) * (rng.uniform(size=(n, 1)) if outlier else 1)
    if holds == "categories":
        return rng.integers(0, 4, size=(n, p))
    X = rng.normal(size=(n, p)) * np.logspace(0, 1, p) + shift
    if outlier:
        X[rng.integers(n)] *= 1e4
    if holds == "gaps":
        X[rng.uniform(size=X.shape) < 0.1] = np.nan
    return X


def assert_same(one, other, name="", tolerance=EXACT):
    """All that two objects hold is the same: names, types, shapes, and numbers to rounding."""
    assert type(one) is type(other), (name, type(one), type(other))
    if isinstance(one, BaseEstimator):
        assert_same(vars(one), vars(other), f"{name}{type(one).__name__}.", tolerance)
    elif isinstance(one, dict):
        assert set(one) == set(other), name
        for key in one:
            assert_same(one[key], other[key], f"{name}{key} ", tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), name
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, theirs, f"{name}{i} ", tolerance)
    elif sparse.issparse(one):
        assert_same(one.toarray(), other.toarray(), name, tolerance)
    elif isinstance(one, np.ndarray | np.generic | float):
        mine, theirs = np.asarray(one), np.asarray(other)
        assert mine.dtype == theirs.dtype, (name, mine.dtype, theirs.dtype)
        assert mine.shape == theirs.shape, (name, mine.shape, theirs.shape)
        if mine.dtype.kind == "f":
            finite = theirs[np.isfinite(theirs)]
            size = np.max(np.abs(finite), initial=0.0)
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * size + 1e-13, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
    elif isinstance(one, str | int | type(None)):
        assert one == other, name


def frozen(*things):
    """What tells whether any of them was changed."""
    return pickle.dumps(things)
