"""The bound against objectives of one parameter, whose minimum is known or found by bisection."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from excise._support.newton_bound import distance_to_minimum


def poisson(w, y, ridge):
    """exp(w) - yw + ½ ridge w²: third derivatives equal second ones but for the penalty."""
    return math.exp(w) - y + ridge * w, math.exp(w) + ridge


def told(w, y, ridge, *, shortened=1.0, share=1.0):
    g, h = poisson(w, y, ridge)
    d = shortened * g / h
    return distance_to_minimum(
        step=abs(d), decrease=g * d, residual=abs(h * d - g), gradient=abs(g), least_curvature=share * h, bend=1.0
    )


@pytest.mark.parametrize("shortened", [1.0, 0.9, 1.1])
@pytest.mark.parametrize("ridge", [0.0, 0.1, 10.0])
def test_the_minimum_is_never_farther_than_the_bound(ridge, shortened):
    finite = 0
    for y in (0.1, 1.0, 30.0):
        minimum = brentq(lambda w, y=y: poisson(w, y, ridge)[0], -20, 20, xtol=1e-15)
        for away in np.concatenate([np.logspace(-8, 1, 40), -np.logspace(-8, 1, 40)]):
            bound = told(minimum + away, y, ridge, shortened=shortened)
            assert abs(away) <= bound * (1 + 1e-9) + 1e-14
            finite += math.isfinite(bound)
    assert finite > 150


def test_it_is_tight_near_the_minimum_even_with_a_curvature_that_is_much_too_small():
    minimum = brentq(lambda w: poisson(w, 2.0, 0.5)[0], -20, 20, xtol=1e-15)
    assert told(minimum + 1e-3, 2.0, 0.5) == pytest.approx(1e-3, rel=2e-3)
    assert told(minimum + 1e-5, 2.0, 0.5, share=0.01) == pytest.approx(1e-5, rel=2e-2)


def test_the_worst_that_a_bend_allows_is_within_the_bound():
    # w exp(-w) + exp(-w): its second derivative falls at the largest rate that a bend of 1 allows
    for g in np.linspace(0.01, 0.9, 30):  # F = e⁻ʷ + (1 - g) w has g(0) = -g, H(0) = 1 and its minimum at -log(1 - g)
        bound = distance_to_minimum(step=g, decrease=g * g, residual=0.0, gradient=g, least_curvature=1.0, bend=1.0)
        assert -math.log1p(-g) <= bound


def test_nothing_is_told_without_curvature_or_far_away():
    known = {"step": 1.0, "decrease": 1.0, "residual": 0.0, "gradient": 1.0}
    assert distance_to_minimum(**known, least_curvature=0.0, bend=0.0) == math.inf
    assert distance_to_minimum(**known, least_curvature=1.0, bend=1.0) == math.inf
