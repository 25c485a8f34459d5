"""How far a minimum can be, told by the Newton step that would go there: a bound that is tight near it.

Let F be convex, g its gradient and H its Hessian at w, and w* = w + Δ its minimum. Where third derivatives are bounded
by second ones, |D³F[v, v, u]| ≤ R ‖u‖ D²F[v, v], as for logistic, multinomial and Poisson losses (R is a multiple of
the largest ‖x‖), H changes between w and w* by no more than a factor e^r, r = R ‖Δ‖ (Bach 2010, "Self-concordant
analysis for logistic regression"). Its mean M over the way satisfies -MΔ = g and (1 - e⁻ʳ)/r H ≤ M ≤ (eʳ - 1)/r H.
With λ the smallest eigenvalue of H, ν² = gᵀH⁻¹g and t = R ν / √λ < 1 it follows that 1 - e⁻ʳ ≤ t, and that Δ differs
from -H⁻¹g, in the norm of H, by at most (r / (1 - e⁻ʳ) - 1) ν ≤ t / (2 (1 - t)) ν. So

    ‖Δ‖ ≤ ‖H⁻¹g‖ + t / (2 (1 - t)) · ν / √λ,

of which the last term is of second order. Only the first needs to be exact: a λ that is too small costs little.
"""

from __future__ import annotations

import math


def distance_to_minimum(
    *,
    step: float,
    decrease: float,
    residual: float,
    gradient: float,
    least_curvature: float,
    bend: float,
) -> float:
    """A bound on ‖w - w*‖; infinite where w is too far from the minimum for it to be told, or λ is 0.

    Args:
        step: ‖d‖, with d an approximate H⁻¹g.
        decrease: gᵀd.
        residual: ‖H d - g‖, rounding of H and g included.
        gradient: ‖g‖, rounding included.
        least_curvature: λ, or something smaller.
        bend: R; 0 for a quadratic.

    >>> distance_to_minimum(step=0.5, decrease=0.5, residual=0.0, gradient=1.0, least_curvature=2.0, bend=0.0)
    0.5
    """
    if not least_curvature > 0:
        return math.inf
    newton = step + residual / least_curvature  # ≥ ‖H⁻¹g‖
    decrement = math.sqrt(max(0.0, decrease) + (newton + step) * residual)  # ≥ ν; g may be off by the residual too
    decrement = min(decrement, gradient / math.sqrt(least_curvature))
    reach = bend * decrement / math.sqrt(least_curvature)
    if not reach < 1:
        return math.inf
    return newton + reach / (2 * (1 - reach)) * decrement / math.sqrt(least_curvature)
