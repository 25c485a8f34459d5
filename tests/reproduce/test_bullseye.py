"""The bullseye experiment: its data, the estimator, the tests and the search, against what is known of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, spearmanr

from excise import lcodec
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.parts.blanket_tests import cmi_of, codec_of, local_shuffles, search_blanket, tree_cmi
from excise.reproduce.parts.feature_maps import _jeffreys, learn_maps
from excise.reproduce.studies.bullseye.claims import judge
from excise.reproduce.studies.bullseye.experiment import EXPERIMENT
from excise.reproduce.studies.bullseye.measure import CMI, LCODEC, LFOCI, MAPS, OURS, RAW, bullseye
from excise.reproduce.studies.bullseye.plot import draw


def test_the_radii_follow_the_graph_and_directions_tell_nothing() -> None:
    points, y, radii = bullseye(4000, 0.075, np.random.default_rng(0))
    r1, r2, r3, r4, r5, r6 = radii.T
    assert np.linalg.norm(points, axis=2) == pytest.approx(radii)
    assert bool((((r1 >= 0.25) & (r1 <= 0.5)) | ((r1 >= 0.75) & (r1 <= 1.0))).all())
    assert np.mean(r1 < 0.6) == pytest.approx(0.5, abs=0.03)
    children = (r2 - r1, r3 - r1, r4 - r3, r5 - (r2 + r4) / 2, y - (r3 + r5) / 2, r6 - (r4 + y) / 2)
    for noise in children:
        assert np.abs(noise).max() <= 0.075 + 1e-12
        assert noise.std() == pytest.approx(0.075 / np.sqrt(3), rel=0.05)
    for one, other in pairwise(children):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06
    directions = points / radii[:, :, None]
    assert np.abs(directions.mean(axis=0)).max() < 0.05
    assert np.abs(np.corrcoef(directions[:, 2].T, y)[-1, :-1]).max() < 0.06


@pytest.mark.parametrize("given", [0, 1, 2])
def test_the_estimate_is_that_of_kd_trees(given: int) -> None:
    rng = np.random.default_rng(given)
    x, z = rng.normal(size=(250, 3)), rng.normal(size=(250, 3 * given))
    y = x[:, 0] ** 2 + 0.3 * rng.normal(size=250)
    assert cmi_of(x, z, 5)(y) == pytest.approx(tree_cmi(x, y, z, 5), abs=1e-12)


def test_the_estimate_by_hand() -> None:
    # k = 1, no z: ε is 1 for all, and no other row is nearer than that in x or in y, so ψ(1) + ψ(3) - 2 ψ(1) = 3/2
    x, z = np.array([[0.0], [1.0], [2.0]]), np.empty((3, 0))
    assert cmi_of(x, z, 1)(np.array([0.0, 1.0, 2.0])) == pytest.approx(1.5)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6, 0.9])
def test_the_estimate_is_right_for_normal_variables(share: float) -> None:
    """I(X; Y | Z) = -log(1 - ρ²) / 2 with ρ the correlation of what Z leaves."""
    rng = np.random.default_rng(3)
    z, e = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 2))
    x = z + e[:, :1]
    y = z[:, 0] + share * e[:, 0] + np.sqrt(1 - share**2) * e[:, 1]
    assert cmi_of(x, z, 5)(y) == pytest.approx(-np.log(1 - share**2) / 2, abs=0.05)
    marginal = np.corrcoef(x[:, 0], y)[0, 1]
    assert cmi_of(x, z[:, :0], 5)(y) == pytest.approx(-np.log(1 - marginal**2) / 2, abs=0.06)


def test_codec_with_neighbours_at_hand_is_lcodec() -> None:
    rng = np.random.default_rng(1)
    x, z, y = rng.normal(size=(200, 3)), rng.normal(size=(200, 2)), rng.normal(size=200)
    assert codec_of(x, z)(y) == pytest.approx(lcodec(y, x, z))
    assert codec_of(x, z[:, :0])(y) == pytest.approx(lcodec(y, x))


@pytest.mark.slow
def test_shuffles_take_near_rows_and_hardly_one_twice() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(size=(300, 2))
    near = np.abs(z[:, None] - z[None]).max(axis=2).argsort(axis=1)[:, 1:6]
    for shuffle in local_shuffles(z, 5, 5, rng):
        assert bool((near == shuffle[:, None]).any(axis=1).all())
        assert len(np.unique(shuffle)) > 240  # 190 would be if each took any of its five
    free = local_shuffles(z[:, :0], 2, 5, rng)
    assert sorted(free[0].tolist()) == list(range(300))
    assert free[0].tolist() != free[1].tolist()


def _oracle(feature: int, given: Any) -> float:
    """P-values of d-separation in the bullseye graph, of X1 … X6 and Y, by moralised ancestors."""
    parents: dict[Any, tuple[Any, ...]] = {0: (), 1: (0,), 2: (0,), 3: (2,), 4: (1, 3), "y": (2, 4), 5: (3, "y")}
    kept, waiting = set(), [feature, "y", *given]
    while waiting:
        node = waiting.pop()
        kept.add(node)
        waiting += [parent for parent in parents[node] if parent not in kept]
    linked = {frozenset((node, parent)) for node in kept for parent in parents[node]}
    linked |= {frozenset(pair) for node in kept for pair in [parents[node]] if len(pair) == 2}
    seen, waiting = set(), [feature]
    while waiting:
        node = waiting.pop()
        seen.add(node)
        near = [other for pair in linked if node in pair for other in pair - {node}]
        waiting += [other for other in near if other not in seen and other not in given]
    return 0.0 if "y" in seen else 1.0


@pytest.mark.slow
def test_the_search_finds_the_blanket_when_tests_are_right_and_it_looks_back() -> None:
    assert _oracle(0, (2, 4)) == 1.0
    assert _oracle(3, (2, 4)) == 1.0
    assert _oracle(3, (2, 4, 5)) == 0.0
    searches = [search_blanket(_oracle, 6, 0.05, np.random.default_rng(seed)) for seed in range(200)]
    assert all({2, 3, 4, 5} <= set(blanket) for blanket in searches)
    # X1 and X2 come in unless X4 came first: by the six orders of the three, (0 + 0 + 1 + 1 + 2 + 2) / 6 of the two
    assert np.mean([len(blanket) - 4 for blanket in searches]) / 2 == pytest.approx(0.5, abs=0.1)
    for seed in range(20):
        assert search_blanket(_oracle, 6, 0.05, np.random.default_rng(seed), shrink=True) == [2, 3, 4, 5]


def test_jeffreys_divergence_against_quadrature() -> None:
    mean, log_variance, other, other_log = (torch.tensor(v) for v in (0.3, -0.5, -0.4, 0.2))
    grid = np.linspace(-12, 12, 20001)
    p = norm.pdf(grid, 0.3, np.exp(-0.25))
    q = norm.pdf(grid, -0.4, np.exp(0.1))
    truth = np.sum((p - q) * (np.log(p) - np.log(q))) * (grid[1] - grid[0]) / 2
    assert float(_jeffreys(mean, log_variance, other, other_log)) == pytest.approx(truth, rel=1e-4)


@pytest.mark.slow
def test_maps_learn_the_radius_and_leave_global_draws_alone() -> None:
    points, y, radii = bullseye(600, 0.075, np.random.default_rng(0))
    before = torch.get_rng_state()
    standardised = (y - y.mean()) / y.std()
    first, again = (learn_maps(points[:100], y[:100], epochs=1, rng=np.random.default_rng(1)) for _ in range(2))
    assert torch.equal(first, again)
    maps = learn_maps(points / 0.4, standardised, epochs=15, rng=np.random.default_rng(1)).numpy()
    assert bool((torch.get_rng_state() == before).all())
    assert maps.shape == (600, 6, 1)
    assert min(abs(spearmanr(maps[:, k, 0], radii[:, k])[0]) for k in range(6)) > 0.6


def _made_up(rates: dict[tuple[str, str], tuple[float, float, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {RAW: {}, MAPS: {}}
    for (kind, name), (tpr, fpr, seconds) in rates.items():
        found[kind][name] = [
            {"tpr": tpr, "fpr": fpr, "seconds": seconds + run, "tests": [6, 30, 60, 9, 0, 0]} for run in (0.0, 0.1)
        ]
    timed = [{"kind": kind, "given": size, CMI: 0.5, LCODEC: 0.1} for kind in (RAW, MAPS) for size in range(6)]
    return {
        "found": {"0.05": found, "0.9": found},
        "map_quality": [[0.9] * 6] * 2,
        "from_scratch": timed,
        "full_size": {"0.05": found[RAW][LCODEC][0]},
        "full_samples": 5000,
    }


PAPER = {
    (RAW, CMI): (0.75, 0.5, 5124.0),
    (RAW, LCODEC): (1.0, 0.5, 402.0),
    (RAW, OURS): (1.0, 0.0, 30.0),
    (MAPS, CMI): (0.875, 0.0, 516.0),
    (MAPS, LCODEC): (0.75, 0.0, 117.0),
    (MAPS, OURS): (1.0, 0.0, 10.0),
    (MAPS, LFOCI): (0.833, 0.5, 0.464),
}


def test_the_papers_figures_confirm_the_papers_claims() -> None:
    claims = judge(_made_up(PAPER))
    assert [claim.verdict for claim in claims] == ["confirmed"] * 7
    assert f"{105 * 101 * 0.5:,.0f} s and {105 * 101 * 0.1:,.0f} s" in claims[0].why


def test_opposite_figures_do_not() -> None:
    opposite = PAPER | {
        (RAW, CMI): (1.0, 0.0, 10.0),
        (RAW, LCODEC): (0.5, 0.5, 20.0),
        (MAPS, CMI): (1.0, 0.0, 10.0),
        (MAPS, LCODEC): (0.5, 0.0, 20.0),
        (MAPS, LFOCI): (1.0, 0.0, 5.0),
    }
    assert [claim.verdict for claim in judge(_made_up(opposite))] == ["not confirmed"] * 7


@pytest.mark.slow
def test_the_plot_has_every_method_and_the_papers_figures() -> None:
    figure = new_figure(EXPERIMENT.size)
    draw(_made_up(PAPER), figure)
    rates, _, seconds = figure.axes[:3]
    assert len(figure.axes) == 6
    assert len(rates.patches) == 7
    assert seconds.get_yscale() == "log"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {CMI, LCODEC, OURS, LFOCI, "the paper"}
