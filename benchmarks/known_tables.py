"""Kinds of tables whose T is known from their distribution, without any sample of it.

With p(t, x) = P(Y ≥ t | X = x) and G(t) = P(Y ≥ t), T(Y, X) = E Var p(Y', X) / E G(Y') (1 - G(Y')), Y' a copy of Y.
Where y is m(X) plus noise of a known distribution, p is known, and the two means are taken over quantiles of Y and many
X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

MANY, QUANTILES = 300_000, 200


@dataclass(frozen=True)
class Kind:
    """A distribution of X, and y = mean(X) + noise, or what ``of`` makes of that."""

    name: str
    inputs: Callable[[Any, int], Any]
    mean: Callable[[Any], Any]
    noise: Any
    """A frozen distribution of scipy, or None for no noise at all."""
    of: Callable[[Any], Any] | None = None
    """A threshold, where y says on which side it lies."""

    def draw(self, rng: Any, n: int) -> tuple[Any, Any]:
        """The y and X of n rows."""
        X = self.inputs(rng, n).astype(float)
        y = self.mean(X) + (0 if self.noise is None else self.noise.rvs(size=n, random_state=rng))
        return (y if self.of is None else self.of(y)), X

    def truth(self, many: int = MANY, quantiles: int = QUANTILES) -> float:
        """T of all rows that there could be."""
        rng = np.random.default_rng(12345)
        y, X = self.draw(rng, many)
        if self.noise is None:
            return 1.0
        means = self.mean(X)
        if self.of is not None:  # y is 0 or 1: T = Var P(Y = 1 | X) / Var Y
            chance = self.noise.sf(-means)
            return float(chance.var() / (chance.mean() * (1 - chance.mean())))
        within = among = 0.0
        for t in np.quantile(y, (np.arange(quantiles) + 0.5) / quantiles, method="higher"):
            above = self.noise.sf(t - means - 1e-9)  # P(Y ≥ t), of whole numbers too
            within += above.var()
            among += above.mean() * (1 - above.mean())
        return float(within / among)


def _normal(columns: int) -> Callable[[Any, int], Any]:
    return lambda rng, n: rng.standard_normal((n, columns))


def _chances(*chances: float) -> Callable[[Any, int], Any]:
    return lambda rng, n: rng.random((n, len(chances))) < chances


def _mixed(rng: Any, n: int) -> Any:
    return np.column_stack((rng.random((n, 6)) < np.linspace(0.1, 0.5, 6), rng.standard_normal((n, 2))))


def _positive(y: Any) -> Any:
    return (y > 0).astype(float)


def _sum(X: Any) -> Any:
    return X.sum(axis=1)


def _weighted(*weights: float) -> Callable[[Any], Any]:
    return lambda X: X @ np.array(weights)


STANDARD = stats.norm()
FEW_COLUMNS = (
    Kind("independent", _normal(1), lambda X: 0 * X[:, 0], STANDARD),
    Kind("linear", _normal(1), _sum, STANDARD),
    Kind("counts, many ties", lambda rng, n: rng.integers(0, 3, (n, 3)), _sum, stats.randint(0, 3)),
    Kind("a product", _normal(2), lambda X: X[:, 0] * X[:, 1], stats.norm(scale=0.5)),
    Kind("two classes", _normal(2), _sum, STANDARD, of=_positive),
)
KINDS = (
    *FEW_COLUMNS,
    Kind("heavy tails (t of 2 degrees)", lambda rng, n: rng.standard_t(2, (n, 2)), _sum, stats.t(2)),
    Kind("heavy tails, little noise", lambda rng, n: rng.standard_t(2, (n, 4)), _sum, stats.norm(scale=0.1)),
    Kind("a function, no noise", lambda rng, n: rng.random((n, 2)), lambda X: X.sum(axis=1) % 1, None),
    Kind(
        "a sum of four terms, little noise",
        _normal(4),
        lambda X: 2 * X[:, 0] + X[:, 1] * X[:, 2] + np.sin(2 * X[:, 3]),
        stats.norm(scale=0.1),
    ),
    Kind("linear in eight", _normal(8), _weighted(*np.linspace(2, 0.3, 8)), stats.norm(scale=0.5)),
    Kind("ten of two values", _chances(*np.linspace(0.05, 0.5, 10)), _weighted(*np.linspace(1, 2, 10)), STANDARD),
    Kind("six of two values and two normal", _mixed, _weighted(*np.linspace(1, 2, 8)), STANDARD),
    Kind(
        "four of sixty values",
        lambda rng, n: rng.integers(0, 60, (n, 4)),
        _weighted(0.1, 0.05, 0.05, 0.02),
        STANDARD,
    ),
)
