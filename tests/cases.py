"""Random problems shared by the tests: continuous, discrete, mixed, on decimal grids, and far from zero."""

import numpy as np

KINDS = ("normal", "discrete", "zero-inflated", "decimal", "float32 mean 100", "heavy-tailed")


def table(kind, n, p, rng):
    """An n × p table without constant columns."""
    draw = {
        "normal": lambda: rng.standard_normal((n, p)),
        "discrete": lambda: rng.integers(0, 3, (n, p)),
        "zero-inflated": lambda: np.maximum(rng.standard_normal((n, p)), 0),
        "decimal": lambda: rng.integers(0, 12, (n, p)) / 10,
        "float32 mean 100": lambda: (100 + rng.standard_normal((n, p))).astype(np.float32),
        "heavy-tailed": lambda: rng.standard_cauchy((n, p)),
    }[kind]
    while True:
        X = draw()
        if (X.max(axis=0) > X.min(axis=0)).all():
            return X


def target(X, rng, *, ties):
    """Something that depends on the first columns."""
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    y = Z[:, 0] + Z[:, 1 % Z.shape[1]] * Z[:, 2 % Z.shape[1]] + 0.3 * rng.standard_normal(len(X))
    return np.round(y) if ties else y
