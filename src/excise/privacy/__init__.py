"""How much noise hides what is left of a sample, what can be certified, and how many requests fit until retraining.

After a removal the weights are w', exact retraining would give w*, and noise N(0, σ²) is added to every weight. The two
are (ε, δ)-indistinguishable when for every set W of weights, and with w' and w* exchanged too,

    P(w' + noise ∈ W) ≤ e^ε P(w* + noise ∈ W) + δ.

This is the paper's definition 1 for a training that adds the same noise; against exact retraining, which always gives
w* itself, it can't hold.
"""

from excise.privacy.accountant import Budget, BudgetAccountant, RetrainRequired, SpentRequest
from excise.privacy.certificate import Certificate, certify
from excise.privacy.claims import NoGuaranteeWarning
from excise.privacy.gaussian import (
    analytic_sigma,
    classic_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    newton_distance,
    paper_sigma,
)
from excise.privacy.mechanism import NoiseSource, Privacy, SecretSource, add_noise, seeded_source
from excise.privacy.seeds import SeededNoiseWarning

__all__ = [
    "Budget",
    "BudgetAccountant",
    "Certificate",
    "NoGuaranteeWarning",
    "NoiseSource",
    "Privacy",
    "RetrainRequired",
    "SecretSource",
    "SeededNoiseWarning",
    "SpentRequest",
    "add_noise",
    "analytic_sigma",
    "certify",
    "classic_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "newton_distance",
    "paper_sigma",
    "seeded_source",
]
