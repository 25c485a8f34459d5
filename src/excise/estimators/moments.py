"""Weights, means and centred second moments of rows, and how those of two sets of rows give those of both.

Centred at the mean of their own set, moments lose no digits to a mean that is far from 0 (Chan, Golub and LeVeque
1983, "Algorithms for computing the sample variance").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from excise.estimators.kept import Floats


@dataclass(frozen=True)
class Moments:
    """Of a set of rows."""

    rows: int
    weight: Floats
    """The sum of the weights: one number, or one for each column where values are missing."""
    mean: Floats
    scatter: Floats
    """Σ w (z - mean)(z - mean)ᵀ, or its diagonal alone."""

    def __add__(self, other: Moments) -> Moments:
        weight = self.weight + other.weight
        share = np.divide(other.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        shift = other.mean - self.mean
        between = np.multiply.outer(shift, shift) if self.scatter.ndim == 2 else shift**2
        scatter = self.scatter + other.scatter + share * self.weight * between
        return Moments(self.rows + other.rows, weight, self.mean + share * shift, scatter)

    def scaled(self, factor: float) -> Moments:
        """Those of the same rows, their weights multiplied by a factor."""
        return Moments(self.rows, self.weight * factor, self.mean, self.scatter * factor)


def joint_moments(Z: Floats, weights: Floats | None) -> Moments:
    """With the products of all pairs of columns.

    >>> both = joint_moments(np.array([[0.0, 1.0]]), None) + joint_moments(np.array([[2.0, 3.0]]), None)
    >>> both.mean.tolist(), both.scatter.tolist()
    ([1.0, 2.0], [[2.0, 2.0], [2.0, 2.0]])
    """
    weight = np.asarray(float(len(Z)) if weights is None else weights.sum())
    mean = _mean(Z, weights)
    centred = Z - mean
    if weights is not None:
        centred *= np.sqrt(weights)[:, None]
    return Moments(len(Z), weight, mean, centred.T @ centred)


def column_moments(Z: Floats, weights: Floats | None) -> Moments:
    """Of each column by itself, without the values that are NaN."""
    there = ~np.isnan(Z)
    W = there.astype(float) if weights is None else there * weights[:, None]
    weight = W.sum(axis=0)
    values = np.where(there, Z, 0.0)
    total = (W * values).sum(axis=0)
    mean = np.divide(total, weight, out=np.zeros_like(weight), where=weight > 0)
    return Moments(len(Z), weight, mean, (W * (values - mean) ** 2).sum(axis=0))


def _mean(Z: Floats, weights: Floats | None) -> Floats:
    if weights is None:
        return np.asarray(Z.mean(axis=0))
    total = weights.sum()
    return np.asarray(weights @ Z / total if total > 0 else np.zeros(Z.shape[1]))
