"""Markov blankets by tests of conditional independence (Yang et al., UAI 2020), with CMI or CODEC as the statistic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from scipy.special import digamma

from excise.statistics._compiled import compiled
from excise.statistics._neighbors import Floats, Ints, nearest
from excise.statistics.dependence import ranks

Statistic = Callable[[Floats], float]
"""A coefficient as a function of y, with what does not depend on y at hand."""
Test = Callable[[int, Sequence[int]], float]
"""The p-value of a feature, given others."""


def search_blanket(
    test: Test, features: int, level: float, rng: np.random.Generator, *, shrink: bool = False
) -> list[int]:
    """Neighbours first, co-parents then: the search of the cited work.

    Of all features, one is struck off when some set of the others that are left, small sets first, makes it
    independent; of those struck off, one comes back if it depends on y given the blanket so far. A feature that comes
    back before the co-parent that explains it stays, unless ``shrink``: then all are tested once more, given the rest.
    """
    blanket = rng.permutation(features).tolist()
    for size in range(features):
        for feature in list(blanket):
            sets = list(combinations(sorted(set(blanket) - {feature}), size))
            if any(test(feature, sets[k]) >= level for k in rng.permutation(len(sets))):
                blanket.remove(feature)
    for feature in rng.permutation(sorted(set(range(features)) - set(blanket))).tolist():
        if test(feature, sorted(blanket)) < level:
            blanket.append(feature)
    for feature in list(blanket) if shrink else []:
        if test(feature, sorted(set(blanket) - {feature})) >= level:
            blanket.remove(feature)
    return sorted(blanket)


def local_shuffles(z: Floats, count: int, among: int, rng: np.random.Generator) -> list[Ints]:
    """Orders that put in each row's place one of its nearest rows in z, or any row if there is no z."""
    samples = len(z)
    if not z.shape[1]:
        return [rng.permutation(samples) for _ in range(count)]
    near = cKDTree(z).query(z, k=among + 1, p=np.inf)[1][:, 1:].astype(np.int64)
    return [_take_unused(near, rng.permutation(samples), rng.integers(0, among, samples)) for _ in range(count)]


@compiled
def _take_unused(near: Any, order: Any, fallback: Any) -> Any:
    """Row after row takes its nearest row that no one has taken, or any of them where all are."""
    used = np.zeros(len(order), dtype=np.bool_)
    taken = np.empty(len(order), dtype=np.int64)
    for row in order:
        taken[row] = near[row, fallback[row]]
        for candidate in near[row]:
            if not used[candidate]:
                taken[row] = candidate
                break
        used[taken[row]] = True
    return taken


def codec_of(x: Floats, z: Floats) -> Statistic:
    """L-CODEC, T(Y, X | Z), as a function of y; neighbours don't depend on it and are searched once."""
    near = nearest(np.column_stack((z, x)), np.uint64(0))
    near_given = nearest(z, np.uint64(1)) if z.shape[1] else None

    def statistic(y: Floats) -> float:
        above, below = ranks(y)
        mates = float(np.minimum(above, above[near]).sum())
        if near_given is None:
            squares = float((below.astype(np.float64) ** 2).sum()) / len(y)
            return (mates - squares) / (float(above.sum()) - squares)
        known = float(np.minimum(above, above[near_given]).sum())
        return (mates - known) / (float(above.sum()) - known)

    return statistic


def cmi_of(x: Floats, z: Floats, neighbours: int) -> Statistic:
    """The nearest-neighbour estimate of I(X; Y | Z) (Kraskov et al., Frenzel and Pompe), as a function of y.

    With ε_i the largest-coordinate distance of row i to its k-th neighbour in (x, y, z), and n_A(i) the other rows
    nearer than ε_i in A, it is ψ(k) + mean(ψ(n_z + 1) - ψ(n_xz + 1) - ψ(n_yz + 1)). Distances in x and z don't depend
    on y: each row's others are sorted by that in z once.
    """
    in_z = cdist(z, z, "chebyshev") if z.shape[1] else np.zeros((len(x), len(x)))
    in_xz = np.maximum(cdist(x, x, "chebyshev"), in_z)
    np.fill_diagonal(in_z, np.inf)  # a row is last in its own order, and left out
    order = np.argsort(in_z, axis=1)[:, :-1]
    in_z, in_xz = np.take_along_axis(in_z, order, axis=1), np.take_along_axis(in_xz, order, axis=1)

    def statistic(y: Floats) -> float:
        n_z, n_xz, n_yz = _counts(order, in_z, in_xz, y, neighbours)
        return float(digamma(neighbours) + np.mean(digamma(n_z + 1) - digamma(n_xz + 1) - digamma(n_yz + 1)))

    return statistic


@compiled
def _counts(order: Any, in_z: Any, in_xz: Any, y: Any, neighbours: Any) -> Any:
    """How many rows are nearer than the k-th neighbour: in z, in (x, z) and in (y, z)."""
    rows, others = order.shape
    n_z, n_xz, n_yz = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    closest = np.empty(neighbours)
    for i in range(rows):
        closest[:] = np.inf
        for j in range(others):
            if in_z[i, j] >= closest[-1]:
                break
            distance = max(in_xz[i, j], abs(y[order[i, j]] - y[i]))
            place = neighbours - 1
            if distance < closest[place]:
                while place > 0 and closest[place - 1] > distance:
                    closest[place] = closest[place - 1]
                    place -= 1
                closest[place] = distance
        for j in range(others):
            if in_z[i, j] >= closest[-1]:
                break
            n_z[i] += 1
            n_xz[i] += in_xz[i, j] < closest[-1]
            n_yz[i] += abs(y[order[i, j]] - y[i]) < closest[-1]
    return n_z, n_xz, n_yz


def tree_cmi(x: Floats, y: Floats, z: Floats, neighbours: int) -> float:
    """The same estimate of I(X; Y | Z) by four kd-trees, from scratch."""
    joint = np.column_stack((x, z, y))
    reach = np.nextafter(cKDTree(joint).query(joint, k=neighbours + 1, p=np.inf)[0][:, -1], 0)

    def nearer(part: Floats) -> Any:
        """How many other rows are nearer than the k-th neighbour, and one for the row itself."""
        if not part.shape[1]:
            return np.full(len(part), len(part))
        return cKDTree(part).query_ball_point(part, reach, p=np.inf, return_length=True)

    n_xz, n_yz, n_z = nearer(joint[:, :-1]), nearer(joint[:, x.shape[1] :]), nearer(z)
    return float(digamma(neighbours) + np.mean(digamma(n_z) - digamma(n_xz) - digamma(n_yz)))
