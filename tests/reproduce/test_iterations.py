"""The iterations experiment: its rate and its verdicts."""

import numpy as np
import pytest

from excise.reproduce.studies.iterations.claims import judge
from excise.reproduce.studies.iterations.measure import AGAIN, LITERAL, RESIDUAL, WHOLE, factor


def figures(*, ours, again, paper, bound=2.0):
    steps = list(range(9))
    left = {RESIDUAL: ours, WHOLE: ours, AGAIN: again, LITERAL: paper}
    rows = {name: [[one**k for k in steps]] for name, one in left.items()}
    return {
        "iterations": steps,
        "repetitions": steps,
        "left": rows,
        "bound": (bound * np.asarray(rows[RESIDUAL])).tolist(),
        "factors": [factor(steps, rows[RESIDUAL][0])],
    }


@pytest.mark.parametrize("given", [0.1, 0.5, 0.95, 1.5])
def test_the_factor_of_a_geometric_series(given):
    steps = [0, 1, 2, 5, 8, 13]
    assert factor(steps, [given**k for k in steps]) == pytest.approx(given)


def test_a_quick_beginning_does_not_count():
    steps = list(range(11))
    assert factor(steps, [1.0, 0.1, *[0.01 * 0.999**k for k in range(9)]]) == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ({"ours": 0.5, "again": 1.2, "paper": 2.0}, ["confirmed", "not confirmed"]),
        ({"ours": 0.5, "again": 0.8, "paper": 0.9}, ["confirmed", "confirmed"]),
        ({"ours": 0.995, "again": 1.2, "paper": 2.0}, ["not confirmed", "not confirmed"]),
        ({"ours": 0.5, "again": 1.2, "paper": 2.0, "bound": 0.9}, ["not confirmed", "not confirmed"]),
    ],
)
def test_verdicts(given, verdicts):
    assert [claim.verdict for claim in judge(figures(**given))] == verdicts
