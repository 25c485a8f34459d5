"""Slow, obvious versions of the statistics: all pairs, no trees, no early stops. They share no code with the package.

What they do share is the rule for ties (squared distances within one part in 10⁹): a row with twins takes the one that
its random number points to, another row the tied one with the smallest number; the numbers are splitmix64's.
"""

import numpy as np

MASK = 2**64 - 1


def mix(key, number):
    z = (int(key) + (int(number) + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def nearest(points, key=0):
    n = len(points)
    squared = np.zeros((n, n))
    for column in np.asarray(points, dtype=np.float64).T:
        squared += (column[:, None] - column[None, :]) ** 2
    np.fill_diagonal(squared, np.inf)
    neighbor = []
    for i in range(n):
        tied = np.flatnonzero(squared[i] <= squared[i].min() * (1 + 1e-9))
        if squared[i].min() == 0:
            neighbor.append(tied[mix(key, i) % len(tied)])
        else:
            neighbor.append(min(tied, key=lambda j, i=i: mix(mix(key, i), j)))
    return np.array(neighbor)


def max_ranks(y):
    return np.array([np.sum(y <= value) for value in y]), np.array([np.sum(y >= value) for value in y])


def unconditional(R, L, M):
    n = len(R)
    return (n * np.minimum(R, R[M]).sum() - np.sum(L**2)) / np.sum(L * (n - L))


def conditional(R, M, N):
    known = np.minimum(R, R[N]).sum()
    return (np.minimum(R, R[M]).sum() - known) / (R.sum() - known)


def codec(y, z, x=None, seed=0):
    y, z = np.asarray(y), np.asarray(z, dtype=np.float64).reshape(len(y), -1)
    rng = np.random.default_rng(seed)
    keys = [rng.integers(2**64, dtype=np.uint64) for _ in range(2)]
    R, L = max_ranks(y)
    if x is None:
        return unconditional(R, L, nearest(z, keys[0]))
    x = np.asarray(x, dtype=np.float64).reshape(len(y), -1)
    return conditional(R, nearest(np.column_stack((x, z)), keys[0]), nearest(x, keys[1]))


def foci(X, y, seed=0, max_features=None, stop=True, standardize=True):
    """Indices and T of each step, by evaluating every candidate from scratch.

    The neighbours in the chosen columns are those drawn when the last of them was chosen.
    """
    X = np.asarray(X, dtype=np.float64)
    if standardize:
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    base = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
    R, L = max_ranks(y)
    chosen, scores, N = [], [], None
    while len(chosen) < (max_features or X.shape[1]):
        found = {}
        for c in range(X.shape[1]):
            if c not in chosen:
                M = nearest(X[:, [*chosen, c]], mix(base, len(chosen)))
                found[c] = (unconditional(R, L, M) if N is None else conditional(R, M, N)), M
        best = max(found, key=lambda c: (np.minimum(R, R[found[c][1]]).sum(), -c))
        if stop and not found[best][0] > 0:
            break
        chosen.append(best)
        scores.append(found[best][0])
        N = found[best][1]
    return chosen, scores
