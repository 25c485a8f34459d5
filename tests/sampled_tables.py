"""Tables that samples are drawn from."""

import numpy as np


def table(n, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.standard_normal(n)


class Watched:
    """A table that is too large to be read, and remembers which rows were."""

    def __init__(self, X):
        self.X, self.shape, self.read = X, X.shape, []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, rows):
        self.read.append(np.array(rows))
        return self.X[rows]
