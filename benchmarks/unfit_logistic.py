"""One row out of a logistic regression on MNIST, against a warm refit: ``python -m benchmarks.unfit_logistic``.

The refit is scikit-learn's, from the same weights, on the other rows, to the same norm of the gradient; its iterations
can be limited (``--iterations``), and the ratio is then at least what is printed. Set OMP_NUM_THREADS=2; the data are
looked for in $EXCISE_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from sklearn._loss.loss import HalfMultinomialLoss
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model._linear_loss import LinearModelLoss

from excise import Unfitter
from excise.datasets.mnist import load_mnist

BEGIN = 40  # iterations of the first fit; it is then brought to its minimum by prepare()


def gradient(estimator: Any, X: Any, y: Any) -> float:
    """The largest entry of the gradient of the mean objective, which lbfgs stops by."""
    loss = LinearModelLoss(HalfMultinomialLoss(n_classes=len(estimator.classes_)), fit_intercept=True)
    weights = np.column_stack([estimator.coef_, estimator.intercept_]).ravel(order="F")
    target = np.searchsorted(estimator.classes_, y).astype(np.float64)
    found = loss.gradient(weights, X, target, l2_reg_strength=1 / (estimator.C * len(y)))
    return float(np.abs(found).max())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="how many images")
    parser.add_argument("--requests", type=int, default=3, help="two or more")
    parser.add_argument("--iterations", type=int, default=2_000, help="the most of a refit")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = load_mnist()
    X, y = X[: options.rows].astype(np.float64), y[: options.rows]
    began = time.perf_counter()
    first = LogisticRegression(max_iter=BEGIN).fit(X, y)
    fitting = time.perf_counter() - began
    began = time.perf_counter()
    unfitter = Unfitter(first, X, y, finish=True).prepare()
    print(f"first fit ({BEGIN} iterations) {fitting:.0f} s, prepare {time.perf_counter() - began:.0f} s", flush=True)
    rows = np.random.default_rng(0).choice(len(y), options.requests, replace=False)
    done = [_timed(unfitter, [row]) for row in rows]
    *_, (seconds, last) = done
    middle = float(np.median([taken for taken, _ in done]))
    print(f"one row: {', '.join(f'{taken:.2f}' for taken, _ in done)} s; {last.words}", flush=True)
    left = np.setdiff1d(np.arange(len(y)), last.gone)
    reached = gradient(last.estimator, X[left], y[left])
    before = done[-2][1].estimator  # at its minimum
    refit = LogisticRegression(max_iter=options.iterations, tol=reached, warm_start=True)
    for name in ("coef_", "intercept_", "classes_"):
        setattr(refit, name, getattr(before, name).copy())
    Z, t = X[left], y[left]
    began = time.perf_counter()
    refit.fit(Z, t)
    taken = time.perf_counter() - began
    whole = "" if gradient(refit, Z, t) <= 2 * reached else ", which did not get there: at least"
    print(
        f"refit, warm: {taken:.0f} s, {refit.n_iter_[0]} iterations, gradient {gradient(refit, Z, t):.2g} against "
        f"{reached:.2g}{whole}\n{taken / middle:.0f} times as fast by the median, {taken / seconds:.0f} by that row"
    )


def _timed(unfitter: Unfitter, rows: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    done = unfitter.unfit(rows)
    return time.perf_counter() - began, done


if __name__ == "__main__":
    main()
