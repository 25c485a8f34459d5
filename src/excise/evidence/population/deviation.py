"""|z|: how many standard deviations of retraining the mean margin of unlearned models is off, sample by sample."""

from __future__ import annotations

import numpy as np

from excise.evidence.population.margins import Floats, require_models

LEAST_DEVIATION = 1e-9  # of a sample on which all retrained models agree


def deviation(unlearned: Floats, retrained: Floats) -> float:
    """Mean over samples of |mean margin unlearned − mean margin retrained| / standard deviation retrained.

    Args:
        unlearned: Margins, models × samples.
        retrained: The same of models that never saw the forgotten samples.

    >>> round(deviation([[2.0], [4.0]], [[0.0], [2.0]]), 6)  # (3 − 1) / √2
    1.414214
    """
    return float(np.abs(deviations(unlearned, retrained)).mean())


def deviations(unlearned: Floats, retrained: Floats) -> Floats:
    """The same of every sample, with its sign: above 0 where unlearned models are surer than retrained ones."""
    ours, theirs = require_models(unlearned, retrained)
    spread = np.maximum(theirs.std(axis=0, ddof=1), LEAST_DEVIATION)
    z: Floats = (ours.mean(axis=0) - theirs.mean(axis=0)) / spread
    return z
