"""One row out of a ridge regression on a million: ``python -m benchmarks.unfit_ridge``.

Times ``fit`` and requests of one row each in the same run, against their bars. Exits with 1 if one is missed, or if
what comes back is not what a fit on the other rows gives.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from sklearn.linear_model import Ridge

from excise import Unfitter

ROWS, COLUMNS = 1_000_000, 100
REQUESTS = 50
MILLISECONDS, FASTER, EXACT = 10.0, 1_000.0, 1e-8  # the bars


def main() -> int:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = X @ rng.standard_normal(COLUMNS) + rng.standard_normal(ROWS)

    start = time.perf_counter()
    ridge = Ridge().fit(X, y)
    fit = time.perf_counter() - start

    start = time.perf_counter()
    unfitter = Unfitter(ridge, X, y).prepare()
    prepare = time.perf_counter() - start

    seconds = []
    gone = rng.choice(ROWS, REQUESTS, replace=False)
    for row in gone:
        start = time.perf_counter()
        done = unfitter.unfit([row])
        seconds.append(time.perf_counter() - start)

    request = statistics.median(seconds)
    fresh = Ridge().fit(np.delete(X, gone, axis=0), np.delete(y, gone))
    error = np.max(np.abs(done.estimator.coef_ - fresh.coef_)) / np.max(np.abs(fresh.coef_))
    print(f"Ridge, {ROWS:,} × {COLUMNS}: fit {fit:.2f} s, prepare {prepare:.2f} s")
    most = max(seconds) * 1000
    print(f"one row: {request * 1000:.2f} ms (median of {REQUESTS}, at most {most:.2f}; bar {MILLISECONDS:g})")
    print(f"{fit / request:,.0f} times faster than fit (bar {FASTER:,.0f})")
    print(f"off a fit without all {REQUESTS} rows by {error:.1e} relative (bar {EXACT:g})")
    return int(request * 1000 > MILLISECONDS or fit / request < FASTER or error > EXACT)


if __name__ == "__main__":
    sys.exit(main())
