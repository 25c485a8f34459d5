"""KLoM: the divergence of the margins of unlearned models from those of retrained ones, in bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from excise.evidence.population.margins import Floats, require_models

BINS = 20
LEAST_SHARE = 1e-5  # of retrained models in a bin
LARGEST_MARGIN = 100.0
PERCENTILE = 95


def klom(unlearned: Floats, retrained: Floats) -> float:
    """The 95th percentile over samples of ``divergences_of_margins``. Few models make it large by themselves."""
    return float(np.percentile(divergences_of_margins(unlearned, retrained), PERCENTILE))


def divergences_of_margins(unlearned: Floats, retrained: Floats) -> Floats:
    """KL(unlearned ‖ retrained) of every sample's margins, in 20 bins over both (Georgiev et al., ICLR 2025).

    As in the published benchmark, the largest margin falls out of the last bin, a bin without retrained models counts
    1e-5 of them, and margins beyond ±100 count as ±100. Where all unlearned models have the largest margin, none would
    be left to count; there it belongs to the last bin.

    Args:
        unlearned: Margins, models × samples.
        retrained: The same of models that never saw the samples.

    >>> ours, theirs = np.array([[0.0], [0.0], [1.0]]), np.array([[0.0], [0.99], [0.99]])
    >>> divergences_of_margins(ours, theirs).round(6).tolist()  # 1.0 falls out: log(1 / (1/3))
    [1.098612]
    """
    ours, theirs = (np.clip(one, -LARGEST_MARGIN, LARGEST_MARGIN) for one in require_models(unlearned, retrained))
    low = np.minimum(ours.min(axis=0), theirs.min(axis=0))
    high = np.maximum(ours.max(axis=0), theirs.max(axis=0))
    high = np.where(low < high, high, low + 1.0)
    edges = np.linspace(low, high, BINS + 1)
    closed = (ours == high).all(axis=0)
    p, q = _shares(ours, edges, closed), _shares(theirs, edges, closed)
    terms = np.where(p > 0, p * (np.log(np.where(p > 0, p, 1.0)) - np.log(np.maximum(q, LEAST_SHARE))), 0.0)
    divergence: Floats = terms.sum(axis=0)
    return divergence


def _shares(margins: Floats, edges: Floats, closed: NDArray[np.bool_]) -> Floats:
    """The share of models in each bin, bins × samples; a bin has its upper edge only if it is the last, and closed."""
    inside = (margins[None] >= edges[:-1, None]) & (margins[None] < edges[1:, None])
    inside[-1] |= closed & (margins == edges[-1])
    counts = inside.sum(axis=1)
    shares: Floats = counts / np.maximum(counts.sum(axis=0), 1)
    return shares
