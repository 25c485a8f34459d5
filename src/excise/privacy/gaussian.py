"""How far a removal can end from retraining, and how much Gaussian noise hides that distance."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, log_ndtr, ndtri

from excise.errors import InputError
from excise.privacy.arguments import count, number

PAPER_LIPSCHITZ, PAPER_HESSIAN_LIPSCHITZ = 1.0, 0.25  # L and M that the published code takes for cross-entropy
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FAR = 40.0  # as t = ε/a - a/2 below: beyond, δ is 0 or 1 as far as floats can tell


def newton_distance(
    *, removed: int, samples: int, lipschitz: float, hessian_lipschitz: float, strong_convexity: float
) -> float:
    """How far one Newton removal step can end from the retrained weights, known before any data is seen.

    The bound of Sekhari, Acharya, Kamath and Suresh (2021), with m of n samples removed:

        ‖w' - w*‖ ≤ 2 M m² L² / (λ³ n²).

    For the optimum moves by r ≤ 2 m L / (λ n), and a Newton step over that distance misses by at most M r² / (2 λ).
    It needs the exact optimum and a full step with the residual set's exact Hessian; ``certify`` holds for any step.

    Args:
        removed: m, how many samples are removed in this step.
        samples: n, how many samples the model was trained on.
        lipschitz: L, the largest norm of one sample's gradient, its weight decay λw included, wherever an optimum can
            be. Twice the Lipschitz constant of the loss alone is enough.
        hessian_lipschitz: M, the Lipschitz constant of one sample's Hessian.
        strong_convexity: λ, for a convex loss the weight decay.

    >>> newton_distance(removed=1, samples=100, lipschitz=1, hessian_lipschitz=1, strong_convexity=1)
    0.0002
    >>> newton_distance(removed=50, samples=100, lipschitz=1, hessian_lipschitz=0, strong_convexity=1)  # a quadratic
    0.0
    """
    m, n = count(removed, "removed"), count(samples, "samples")
    if m >= n:
        raise InputError(f"removed must be less than samples ({n}), not {m}; at least one sample has to remain.")
    convexity = number(strong_convexity, "strong_convexity", positive=True)
    moved = 2 * m * number(lipschitz, "lipschitz") / (convexity * n)
    return number(hessian_lipschitz, "hessian_lipschitz") * moved * moved / (2 * convexity)


def classic_sigma(distance: float, epsilon: float, delta: float) -> float:
    """The noise of the paper, by the classical Gaussian mechanism: σ = distance · √(2 ln(1.25/δ)) / ε.

    A guarantee for ε ≤ 1 only; a larger ε is refused. ``analytic_sigma`` needs less noise for the same promise.

    >>> round(classic_sigma(1, 1, 1e-5), 3)  # √(2 ln 125000)
    4.845
    """
    size, eps = number(distance, "distance"), number(epsilon, "epsilon", positive=True)
    if eps > 1:
        raise InputError(f"epsilon must be at most 1 for this formula to hold, not {epsilon!r}; use analytic_sigma.")
    return size * math.sqrt(2 * math.log(1.25 / number(delta, "delta", positive=True, below=1))) / eps


def analytic_sigma(distance: float, epsilon: float, delta: float) -> float:
    """The least noise that makes two models at this distance (ε, δ)-indistinguishable, for any ε > 0.

    It is the σ whose ``gaussian_delta`` is δ (Balle and Wang 2018, algorithm 1).

    >>> round(analytic_sigma(1, 1, 1e-5), 3)  # where the classical formula asks for 4.845
    3.731
    """
    eps, prob = number(epsilon, "epsilon", positive=True), number(delta, "delta", positive=True, below=1)
    return number(distance, "distance") / gaussian_mu(eps, prob)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest distance, in standard deviations of the noise, at which two models are (ε, δ)-indistinguishable.

    It is the μ whose ``gaussian_delta(1, μ, epsilon)`` is δ, that of Gaussian differential privacy (Dong, Roth and Su
    2022), and 0 for δ = 0.

    >>> round(gaussian_mu(0, 0.6827), 3)  # between N(-1, 1) and N(1, 1) δ is P(|N(0, 1)| ≤ 1)
    2.0
    """
    eps, prob = number(epsilon, "epsilon"), number(delta, "delta", below=1)
    if eps == 0 or prob == 0:
        return math.sqrt(8) * float(erfinv(prob)) if eps == 0 else 0.0
    root = math.sqrt(2) * math.sqrt(eps)

    def ratio(t: float) -> float:
        # the a > 0 with t = ε/a - a/2, that is √(t² + 2ε) - t, without cancellation
        reach = math.hypot(t, root)
        return reach - t if t < 0 else root * (root / (reach + t))

    t = _root(lambda t: _log_delta(t, ratio(t)) - math.log(prob), -_FAR, _latest(prob), scale=root)
    return ratio(t)


def gaussian_delta(sigma: float, distance: float, epsilon: float) -> float:
    """The smallest δ for which noise σ makes two models at this distance (ε, δ)-indistinguishable.

    With a = distance/σ it is δ = Φ(a/2 - ε/a) - e^ε Φ(-a/2 - ε/a) (Balle and Wang 2018, theorem 8).

    >>> round(gaussian_delta(1, 2, 0), 4)  # between N(-1, 1) and N(1, 1) it is P(|N(0, 1)| ≤ 1)
    0.6827
    """
    a = number(distance, "distance") / number(sigma, "sigma", positive=True)
    t = number(epsilon, "epsilon") / a - a / 2 if a > 0 else math.inf
    if abs(t) > _FAR:
        return 0.0 if t > 0 else 1.0
    return min(math.exp(_log_delta(t, a)), 1.0)


def gaussian_epsilon(sigma: float, distance: float, delta: float) -> float:
    """The smallest ε ≥ 0 for which noise σ makes two models at this distance (ε, δ)-indistinguishable.

    >>> round(gaussian_epsilon(analytic_sigma(3, 0.5, 1e-6), 3, 1e-6), 9)
    0.5
    """
    a = number(distance, "distance") / number(sigma, "sigma", positive=True)
    prob = number(delta, "delta", positive=True, below=1)
    if a == math.inf:
        return math.inf
    if a == 0 or _log_delta(-a / 2, a) <= math.log(prob):  # ε = 0 is enough
        return 0.0
    t = _root(lambda t: _log_delta(t, a) - math.log(prob), -a / 2, _latest(prob), scale=a)
    return a * (t + a / 2)


def paper_sigma(*, samples: int, weight_decay: float, epsilon: float, delta: float) -> float:
    """The noise of the published code: one sample at a time, never composed over requests."""
    distance = newton_distance(
        removed=1,
        samples=samples,
        lipschitz=PAPER_LIPSCHITZ,
        hessian_lipschitz=PAPER_HESSIAN_LIPSCHITZ,
        strong_convexity=weight_decay,
    )
    return classic_sigma(distance, epsilon, delta)


def _log_delta(t: float, a: float) -> float:
    """Log of δ, where t = ε/a - a/2: δ = φ(t) (R(t) - R(t + a)) with Mills' ratio R(s) = Φ(-s)/φ(s)."""
    log_density = -t * t / 2 - math.log(2 * math.pi) / 2
    if a < 1:
        # the two would cancel, so integrate -R'(s) = 1 - s R(s), which is so smooth that few nodes give all digits
        s = t + a * (1 + _NODES) / 2
        return log_density + math.log(a) + math.log(_WEIGHTS @ (1 - s * _mills(s)) / 2)
    log_tail = float(log_ndtr(-t))
    return log_tail + math.log1p(-math.exp(log_density + math.log(_mills(t + a)) - log_tail))


def _latest(prob: float) -> float:
    """A t at which δ is surely less than this, as it is at most Φ(-t)."""
    return 1 - float(ndtri(prob))


def _mills(s: Any) -> Any:
    return math.sqrt(math.pi / 2) * erfcx(s / math.sqrt(2))


def _root(f: Any, low: float, high: float, *, scale: float) -> float:
    return float(brentq(f, low, high, xtol=1e-16 * scale, rtol=4 * sys.float_info.epsilon, maxiter=5000))
