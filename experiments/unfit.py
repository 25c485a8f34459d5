"""How exact the Newton kinds of ``unfit`` are: each of the 100 hardest rows left out: ``python -m experiments.unfit``.

The hardest rows are those with the largest loss. A row's true distance is that to a second refit, whose certificate is
as small as rounding allows. Where even the first is as near as that (the objective is quadratic around it, say), the
ratio of certificate to distance is one of rounding errors, and left out of the median. MNIST is looked for in
$EXCISE_DATA; ``--mnist 60000`` takes all of it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from excise.datasets.mnist import load_mnist
from excise.estimators.composition import keep
from excise.estimators.kept import Data, Options

TIGHT = 1e-13
HEAD = (
    "data",
    "estimator",
    "rows",
    "share left, max",
    "certificate / distance, median",
    "of",
    "below",
    "ms",
    "prepare, s",
)


def cases(images: int) -> Iterator[tuple[str, Any, Any, list[Any]]]:
    """Data and estimators."""
    X, y = load_breast_cancer(return_X_y=True)
    softmax = LogisticRegression(max_iter=10_000)
    descent = SGDClassifier("log_loss", random_state=0)
    yield "breast cancer", StandardScaler().fit_transform(X), y, [softmax, LinearSVC(), descent]
    X, y = load_digits(return_X_y=True)
    yield "digits", X / 16, y, [softmax, LinearSVC()]
    X, y = load_diabetes(return_X_y=True)
    regressors = [
        PoissonRegressor(max_iter=10_000),
        GammaRegressor(max_iter=10_000),
        HuberRegressor(max_iter=10_000),
        SGDRegressor(random_state=0),
    ]
    yield "diabetes", StandardScaler().fit_transform(X), y, regressors
    if images:
        X, y = load_mnist()
        yield f"MNIST, {images:,}", X[:images].astype(np.float64), y[:images], [LogisticRegression(max_iter=200)]


def hardest(estimator: Any, X: Any, y: Any, count: int) -> Any:
    """Rows whose predictions are worst."""
    if not hasattr(estimator, "classes_"):
        return np.argsort(-np.abs(y - estimator.predict(X)))[:count]
    scores = estimator.decision_function(X)
    scores = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
    own = np.searchsorted(estimator.classes_, y)
    margins = scores[np.arange(len(y)), own]
    scores[np.arange(len(y)), own] = -np.inf
    return np.argsort(margins - scores.max(axis=1))[:count]


def parameters(estimator: Any) -> Any:
    parts = [estimator.coef_, estimator.intercept_, getattr(estimator, "scale_", 0.0)]
    return np.concatenate([np.ravel(part) for part in parts])


def measure(estimator: Any, X: Any, y: Any, count: int) -> list[str]:
    """A row of the table."""
    estimator.fit(X, y)
    began = time.perf_counter()
    kept: Any = keep(estimator, Data(X, y), Options(finish=True))
    preparing = time.perf_counter() - began
    exact: Any = type(kept)(**{**vars(kept), "options": Options(tolerance=TIGHT, finish=True)})
    shares, ratios, below, seconds = [], [], 0, []
    rows = hardest(estimator, X, y, count)
    for row in rows:
        began = time.perf_counter()
        found = kept.without(np.array([row]))
        seconds.append(time.perf_counter() - began)
        best = exact.without(np.array([row]), found.estimator)
        true = float(np.linalg.norm(parameters(found.estimator) - parameters(best.estimator)))
        if found.moved > 0:  # else the row has no influence
            shares.append(found.bound / found.moved)
        below += true > found.bound + best.bound
        if true > 10 * best.bound:
            ratios.append(found.bound / true)
    middle = f"{np.median(ratios):.3f}" if ratios else "at rounding"
    return [
        f"{len(rows)}",
        f"{max(shares):.1e}",
        middle,
        f"{len(ratios)}",
        f"{below}",
        f"{1000 * float(np.median(seconds)):.1f}",
        f"{preparing:.1f}",
    ]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100, help="hardest rows of each")
    parser.add_argument("--mnist", type=int, default=4000, help="how many images; 0 for none")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name, X, y, estimators in cases(options.mnist):
        for estimator in estimators:
            told = measure(estimator, X, y, options.rows)
            print(f"| {name} | {type(estimator).__name__} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
