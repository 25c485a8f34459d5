"""Slow, obvious versions of the statistics: all pairs, no trees, no early stops. They share no code with the package.

What they do share is the rule for ties: the rows are shuffled by ``default_rng(seed).permutation(n)``, and of several
equally near rows (squared distances within one part in 10⁹) the one that follows cyclically is the neighbour.
"""

import numpy as np


def nearest(points):
    n = len(points)
    squared = np.zeros((n, n))
    for column in np.asarray(points, dtype=np.float64).T:
        squared += (column[:, None] - column[None, :]) ** 2
    np.fill_diagonal(squared, np.inf)
    neighbor = []
    for i in range(n):
        tied = np.flatnonzero(squared[i] <= squared[i].min() * (1 + 1e-9))
        neighbor.append(tied[np.argmin((tied - i) % n)])
    return np.array(neighbor)


def max_ranks(y):
    return np.array([np.sum(y <= value) for value in y]), np.array([np.sum(y >= value) for value in y])


def codec(y, z, x=None, seed=0):
    y, z = np.asarray(y), np.asarray(z, dtype=np.float64).reshape(len(y), -1)
    shuffle = np.random.default_rng(seed).permutation(len(y))
    y, z = y[shuffle], z[shuffle]
    R, L = max_ranks(y)
    n = len(y)
    if x is None:
        M = nearest(z)
        return (n * np.minimum(R, R[M]).sum() - np.sum(L**2)) / np.sum(L * (n - L))
    x = np.asarray(x, dtype=np.float64).reshape(n, -1)[shuffle]
    M, N = nearest(np.column_stack((x, z))), nearest(x)
    known = np.minimum(R, R[N]).sum()
    return (np.minimum(R, R[M]).sum() - known) / (R.sum() - known)


def foci(X, y, seed=0, max_features=None, stop=True, standardize=True):
    """Indices and T of each step, by evaluating every candidate from scratch."""
    X = np.asarray(X, dtype=np.float64)
    if standardize:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    chosen, scores = [], []
    while len(chosen) < (max_features or X.shape[1]):
        left = [c for c in range(X.shape[1]) if c not in chosen]
        gains = [codec(y, X[:, [c]], X[:, chosen] if chosen else None, seed) for c in left]
        best = int(np.argmax(gains))
        if stop and not gains[best] > 0:
            break
        chosen.append(left[best])
        scores.append(gains[best])
    return chosen, scores
