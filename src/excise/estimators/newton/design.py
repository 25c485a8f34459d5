"""The table that a linear model sees: the rows of X, with a 1 at the end of each where there is an intercept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from excise.estimators.kept import Floats, Rows

PART = 4096  # rows at a time, so that a weighted copy of the table stays small


@dataclass(frozen=True)
class Design:
    """X in double precision, dense or CSR, and whether a column of ones comes after it."""

    X: Any
    intercept: bool

    @property
    def width(self) -> int:
        """The number of columns, with that of ones."""
        return int(self.X.shape[1]) + self.intercept

    @cached_property
    def lengths(self) -> Floats:
        """The Euclidean length of each row."""
        if sparse.issparse(self.X):
            squares = np.asarray(self.X.multiply(self.X).sum(axis=1)).ravel()
        else:
            squares = np.einsum("ij,ij->i", self.X, self.X)
        found: Floats = np.sqrt(squares + self.intercept)
        return found

    def rows(self, which: Rows) -> Floats:
        """Some of the rows, dense."""
        some = self.X[which]
        some = some.toarray() if sparse.issparse(some) else some
        return np.column_stack([some, np.ones(len(some))]) if self.intercept else np.asarray(some)

    def forward(self, weights: Floats) -> Floats:
        """The rows times these weights: a vector, or a column for each output."""
        if not self.intercept:
            return np.asarray(self.X @ weights)
        out = np.asarray(self.X @ weights[:-1])
        out += weights[-1]
        return out

    def backward(self, values: Floats) -> Floats:
        """The sum of the rows, each times its value or values."""
        out = np.asarray(self.X.T @ values)
        return np.concatenate([out, values.sum(axis=0, keepdims=True)]) if self.intercept else out

    def gram(self, weights: Floats) -> Floats:
        """The sum of weight · row · rowᵀ over all rows; a row of weight 0 costs nothing."""
        total = np.zeros((self.width, self.width))
        used = np.flatnonzero(weights)
        for low in range(0, len(used), PART):
            rows = used[low : low + PART]
            root = np.sqrt(weights[rows])
            part = self.X[rows]
            if sparse.issparse(part):
                scaled = sparse.diags_array(root) @ part
                inner, border = (scaled.T @ scaled).toarray(), np.asarray(scaled.T @ root)
            else:
                scaled = part * root[:, None]
                inner, border = scaled.T @ scaled, scaled.T @ root
            if self.intercept:
                total[:-1, :-1] += inner
                total[-1, :-1] += border
                total[:-1, -1] += border
                total[-1, -1] += root @ root
            else:
                total += inner
        return total

    def squares(self, weights: Floats) -> Floats:
        """The diagonal of ``gram``; a column of weights for each output gives a column."""
        squared = self.X.multiply(self.X) if sparse.issparse(self.X) else np.square(self.X)
        out = np.asarray(squared.T @ weights)
        return np.concatenate([out, weights.sum(axis=0, keepdims=True)]) if self.intercept else out
