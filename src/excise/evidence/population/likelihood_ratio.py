"""U-LiRA: the attacker who knows, for every sample, the distribution over models that unlearned or never saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from excise.evidence.population.margins import Floats, require_models

LEAST_VARIANCE = 1e-12  # of a sample on which all models agree


@dataclass(frozen=True)
class LikelihoodRatio:
    """How well the likelihood ratio tells unlearned models from retrained ones, sample by sample."""

    auc: float
    """Mean over samples; 0.5 where they can't be told apart, and a little less by leaving one out."""
    true_positives: float
    """Share of unlearned models that the attacker takes for unlearned, mean over samples: the ratio is above 1."""
    false_positives: float
    """Share of retrained models that he takes for unlearned."""
    each: Floats = field(repr=False, compare=False)
    """AUC of every sample."""


def likelihood_ratio(unlearned: Floats, retrained: Floats) -> LikelihoodRatio:
    """Attack every model with normal distributions fitted to the margins of all others (U-LiRA, Hayes et al. 2024).

    Args:
        unlearned: Margins of the forgotten samples, models × samples.
        retrained: The same of models that never saw them.

    >>> same = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> likelihood_ratio(same + 100, same).auc, likelihood_ratio(same + 100, same).false_positives
    (1.0, 0.0)
    """
    ours, theirs = require_models(unlearned, retrained, fewest=3)
    ratio_of_ours = _log_density(ours, *_left_out(ours)) - _log_density(ours, *_all(theirs))
    ratio_of_theirs = _log_density(theirs, *_all(ours)) - _log_density(theirs, *_left_out(theirs))
    each = _aucs(ratio_of_ours, ratio_of_theirs)
    return LikelihoodRatio(
        auc=float(each.mean()),
        true_positives=float(np.mean(ratio_of_ours > 0)),
        false_positives=float(np.mean(ratio_of_theirs > 0)),
        each=each,
    )


def _all(margins: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of each sample."""
    return margins.mean(axis=0), margins.var(axis=0, ddof=1)


def _left_out(margins: Floats) -> tuple[Floats, Floats]:
    """Mean and variance over the other models, for every model."""
    others = [_all(np.delete(margins, model, axis=0)) for model in range(len(margins))]
    return np.stack([mean for mean, _ in others]), np.stack([variance for _, variance in others])


def _log_density(values: Floats, mean: Floats, variance: Floats) -> Floats:
    variance = np.maximum(variance, LEAST_VARIANCE)
    density: Floats = -0.5 * ((values - mean) ** 2 / variance + np.log(variance))
    return density


def _aucs(higher: Floats, lower: Floats) -> Floats:
    """For each column the share of pairs in which ``higher`` is above ``lower``, ties counting half."""
    difference = higher[:, None, :] - lower[None, :, :]
    areas: Floats = np.mean((difference > 0) + 0.5 * (difference == 0), axis=(0, 1))
    return areas
