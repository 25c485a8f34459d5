"""FOCI as one would write it from the paper, a kd-tree per candidate and step: what the fast search is up against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def nearest(points: Floats) -> Ints:
    """The nearest other row; of equally near ones, any."""
    found: Ints = cKDTree(points).query(points, k=2, workers=2)[1][:, 1]
    return found


def nearest_listing_ties(points: Floats, rng: np.random.Generator) -> Ints:
    """CODEC's rule as it reads: list all the equally near rows of each row, then draw one."""
    tree = cKDTree(points)
    distance = tree.query(points, k=2, workers=2)[0][:, 1]
    neighbor = np.empty(len(points), dtype=np.int64)
    for low in range(0, len(points), 500):  # the lists of all rows at once would not fit in memory
        part = slice(low, low + 500)
        lists = tree.query_ball_point(points[part], distance[part] * (1 + 1e-9), workers=2)
        neighbor[part] = [tied[rng.integers(len(tied))] for tied in lists]
    return neighbor


def nearest_with_noise(points: Floats, rng: np.random.Generator) -> Ints:
    """L-CODEC's way round ties: noise smaller than any gap, then any kd-tree will do."""
    return nearest(points + rng.normal(0.0, 1e-4, points.shape))


def foci(X: Floats, y: Floats, max_features: int, find: Callable[[Floats], Ints] = nearest) -> list[int]:
    """The columns chosen by forward selection with T, every candidate from scratch."""
    rank = np.searchsorted(np.sort(y), y, side="right")
    below = len(y) - np.searchsorted(np.sort(y), y, side="left")
    known = float(np.sum(below**2)) / len(y)
    chosen: list[int] = []
    while len(chosen) < max_features:
        sums = {}
        for c in range(X.shape[1]):
            if c not in chosen:
                sums[c] = np.minimum(rank, rank[find(X[:, [*chosen, c]])]).sum()
        best = max(sums, key=lambda c: sums[c])
        if sums[best] <= known:
            break
        known = sums[best]
        chosen.append(best)
    return chosen
