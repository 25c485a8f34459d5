"""Populations of models: U-LiRA, KLoM, the NeurIPS 2023 score and |z|, each beside the floor of retraining."""

from excise.evidence.population.deviation import deviation, deviations
from excise.evidence.population.epsilon_score import EpsilonScore, epsilon_score
from excise.evidence.population.klom import divergences_of_margins, klom
from excise.evidence.population.likelihood_ratio import LikelihoodRatio, likelihood_ratio
from excise.evidence.population.population import Measured, Population, population

__all__ = [
    "EpsilonScore",
    "LikelihoodRatio",
    "Measured",
    "Population",
    "deviation",
    "deviations",
    "divergences_of_margins",
    "epsilon_score",
    "klom",
    "likelihood_ratio",
    "population",
]
