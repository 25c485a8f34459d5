"""What is kept of a fitted estimator and its data, so that rows can be taken out of it; one way for each type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
NO_ROWS: Rows = np.empty(0, dtype=np.intp)


@dataclass(frozen=True)
class Data:
    """What an estimator was fitted on, as it was passed to ``fit``: X may be sparse, or a table with named columns."""

    X: Any
    y: Any = None
    sample_weight: Floats | None = None

    def __len__(self) -> int:
        shape = getattr(self.X, "shape", None)
        return len(self.X) if shape is None else int(shape[0])

    def without(self, gone: Rows) -> Data:
        """A copy of the other rows."""
        rest = np.setdiff1d(np.arange(len(self)), gone, assume_unique=True)
        X, y, weights = (
            None if values is None else _safe_indexing(values, rest) for values in (self.X, self.y, self.sample_weight)
        )
        return Data(X, y, weights)


@dataclass(frozen=True)
class Refit:
    """An estimator as it would be, had it been fitted without some rows."""

    estimator: Any
    bound: float
    """The Euclidean distance of its fitted parameters to those of the exact fit is at most this; 0 for algebra, which
    is exact up to rounding."""
    moved: float
    """How far the parameters moved by the request; NaN where there are fewer of them than before."""
    words: str
    """What was done and what is guaranteed, in a sentence or two."""


class Kept(Protocol):
    """An estimator with its data."""

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """The estimator without all of these rows (sorted, without repeats, of the original data).

        ``last`` is the estimator that an earlier request gave, without some of the rows, from which to go on; the
        first request has none. ``gone`` may be empty: a later step of a pipeline is kept on the rows that are left,
        as the new steps before it give them, and must then be fitted to these (see ``Options.trusted``).
        """
        ...


Keep = Callable[[Any, Data, "Options"], Kept]


@dataclass(frozen=True)
class Options:
    """How exact a refit must be, and what may be taken on trust."""

    tolerance: float = 1e-4
    """The certified distance that may be left, as a share of the distance moved."""
    finish: bool = False
    """Whether an estimator whose solver stopped early is first brought to its minimum."""
    trusted: bool = False
    """Whether the data are known to be other than those of the fit, as for a later step of a pipeline, so that they
    are not compared with the estimator. They may have fewer rows, columns and classes than it knows."""


_WAYS: dict[type, Keep] = {}
K = TypeVar("K", bound=Keep)


def way_for(*types: type) -> Callable[[K], K]:
    """Make a function known as the way to keep estimators of these very types."""

    def known(keep: K) -> K:
        for one in types:
            _WAYS[one] = keep
        return keep

    return known


def find_way(estimator: Any) -> Keep | None:
    """The way for an estimator: by its exact type, since a subclass may fit in another way."""
    return _WAYS.get(type(estimator))


def known_types() -> list[str]:
    """Names of all types that have a way."""
    return sorted(one.__name__ for one in _WAYS)
