"""The speed experiment: the textbook searches against slow, obvious ones, and verdicts on made-up figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.celeba_speed.claims import judge, overlap
from excise.reproduce.studies.celeba_speed.experiment import EXPERIMENT
from excise.reproduce.studies.celeba_speed.measure import (
    FOCI,
    LFOCI,
    LITERAL,
    PREDICTORS,
    VANISHING,
    Settings,
    _coefficients,
    _originals,
    nearest_after_noise,
    nearest_of_listed,
    plain_foci,
)
from excise.reproduce.studies.celeba_speed.plot import draw


def _tied(points: Any) -> Any:
    """Who is equally near to whom, by all distances."""
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=2).astype(float)
    np.fill_diagonal(distance, np.inf)
    return distance == distance.min(axis=1, keepdims=True)


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_both_textbook_rules_give_a_nearest_other_row(columns: int) -> None:
    rng = np.random.default_rng(columns)
    points = rng.choice([-1.0, 1.0], size=(120, columns))
    rows, tied = np.arange(120), _tied(points)
    for _ in range(5):
        assert bool(tied[rows, nearest_of_listed(points, rng=rng)].all())
        assert bool(tied[rows, nearest_after_noise(points, noise=1e-4, rng=rng)].all())


def test_listed_neighbours_are_drawn_evenly() -> None:
    points = np.array([[-1.0]] * 4 + [[1.0]] * 2)
    rng = np.random.default_rng(0)
    drawn = np.array([nearest_of_listed(points, rng=rng) for _ in range(600)])
    shares = np.array([[np.mean(drawn[:, row] == other) for other in range(6)] for row in range(6)])
    truth = np.zeros((6, 6))
    truth[:4, :4], truth[4:, 4:] = (1 - np.eye(4)) / 3, 1 - np.eye(2)
    assert shares == pytest.approx(truth, abs=0.08)


def test_the_plain_search_finds_the_columns_that_make_y() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], size=(300, 5))
    y = X[:, 1] + 2 * X[:, 3]
    for find in (lambda p: nearest_of_listed(p, rng=rng), lambda p: nearest_after_noise(p, noise=0.01, rng=rng)):
        chosen, evaluations = plain_foci(X, y, find, most=5)
        assert chosen[:2] == [3, 1]
        assert evaluations >= 5 + 4
    assert plain_foci(X, y, lambda p: nearest_of_listed(p, rng=rng), most=1) == ([3], 5)


def test_noise_on_a_two_valued_outcome_halves_its_coefficient() -> None:
    rng = np.random.default_rng(0)
    values = np.repeat(rng.choice([-1, 1], size=(1000, 1)), 2, axis=1).astype(np.int8)
    values = np.column_stack((values, rng.choice([-1, 1], size=1000))).astype(np.int8)
    found = _coefficients(values, 0, [1], Settings(coefficient_rows=1000, draws=3), [0])
    assert found["CODEC"] == found[VANISHING] == found[PREDICTORS] == [1.0] * 3
    assert np.mean(found[LITERAL]) == pytest.approx(0.5, abs=0.05)


def test_columns_are_counted_among_all_attributes() -> None:
    assert _originals([0, 1, 2], target=1) == [0, 2, 3]
    assert overlap([], []) == 1.0
    assert overlap([1], [2]) == 0.0


def _made_up(slow: float, quick: float, literal: float, sets: Any) -> dict[str, Any]:
    search = {"seconds": {FOCI: slow, LFOCI: quick}, "sets": dict(zip((FOCI, LFOCI), sets, strict=True))}
    return {
        "attributes": ["Bald", "Young"],
        "rows": {"textbook": 1000, "ours": 202_599},
        "textbook": [search | {"evaluations": {FOCI: 100, LFOCI: 50}, "two_draws": [[1, 2, 3], [1, 2, 4]]}] * 2,
        "ours": [search] * 2,
        "coefficients": [{"CODEC": [0.4], VANISHING: [0.4], PREDICTORS: [0.41], LITERAL: [literal]}] * 2,
        "growth": {"rows": [1000, 8000], "seconds": {FOCI: [0.2, 8.0], LFOCI: [0.1, 0.8]}},
    }


def test_verdicts_follow_the_figures() -> None:
    alike = judge(_made_up(10.0, 1.0, 0.39, ([1, 2], [1, 2])))
    assert [claim.verdict for claim in alike] == ["confirmed"] * 5
    assert "10.0 times; one coefficient by 5.0 times" in alike[0].measured
    assert "2.0 times as long with ties as with noise at 1,000 rows and 10.0 times at 8,000" in alike[1].measured
    figures = _made_up(1.0, 1.1, 0.2, ([1, 2], [3, 4]))
    unlike = judge(figures | {"growth": {"rows": [1000, 8000], "seconds": {FOCI: [0.1, 0.8], LFOCI: [0.1, 0.8]}}})
    assert [claim.verdict for claim in unlike] == ["not confirmed"] * 5
    assert "-0.200 with noise on all variables" in unlike[3].measured


def test_blankets_that_chance_alone_changes_can_not_be_compared() -> None:
    measured = _made_up(10.0, 1.0, 0.39, ([1, 2], [1, 2]))
    measured["textbook"] = [one | {"two_draws": [[1], [2]]} for one in measured["textbook"]]
    assert judge(measured)[4].verdict == "out of reach"


def test_the_plot_has_a_pair_of_columns_per_attribute() -> None:
    figure = new_figure(EXPERIMENT.size)
    draw(_made_up(10.0, 1.0, 0.4, ([1], [1])), figure)
    assert [len(axes.patches) for axes in figure.axes] == [4, 4]
    assert all(axes.get_yscale() == "log" for axes in figure.axes)
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["Bald", "Young"]
