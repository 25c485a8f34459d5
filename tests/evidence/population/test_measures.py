"""U-LiRA, KLoM, the score of the competition and |z|, each against a slow version that follows its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from excise.errors import InputError
from excise.evidence.population import (
    deviation,
    deviations,
    divergences_of_margins,
    epsilon_score,
    klom,
    likelihood_ratio,
)

MEASURES = (likelihood_ratio, klom, epsilon_score, deviation)


def populations(seed, models=7, samples=5, shift=0.7):
    rng = np.random.default_rng(seed)
    centre = rng.normal(0, 3, samples)
    return centre + shift + rng.normal(size=(models, samples)), centre + 1.3 * rng.normal(size=(models + 1, samples))


def slow_log_ratio(value, unlearned, retrained):
    mine = norm.logpdf(value, np.mean(unlearned), np.std(unlearned, ddof=1))
    return mine - norm.logpdf(value, np.mean(retrained), np.std(retrained, ddof=1))


def slow_attack(ours, theirs):
    """AUC, true and false positives of one sample, every model attacked by what all others show."""
    of_ours = [slow_log_ratio(x, np.delete(ours, i), theirs) for i, x in enumerate(ours)]
    of_theirs = [slow_log_ratio(x, ours, np.delete(theirs, i)) for i, x in enumerate(theirs)]
    pairs = [(a > b) + 0.5 * (a == b) for a in of_ours for b in of_theirs]
    return np.mean(pairs), np.mean(np.array(of_ours) > 0), np.mean(np.array(of_theirs) > 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_ratio_is_that_of_a_slow_version(seed):
    ours, theirs = populations(seed)
    slow = np.array([slow_attack(ours[:, i], theirs[:, i]) for i in range(ours.shape[1])])
    found = likelihood_ratio(ours, theirs)
    np.testing.assert_allclose(found.each, slow[:, 0], atol=1e-9)
    np.testing.assert_allclose(
        [found.auc, found.true_positives, found.false_positives], slow.mean(axis=0), atol=1e-9, rtol=0
    )


def test_the_likelihood_ratio_bears_an_outlier():
    ours, theirs = populations(0)
    ours[2] += 1e9
    slow = [slow_attack(ours[:, i], theirs[:, i])[0] for i in range(ours.shape[1])]
    np.testing.assert_allclose(likelihood_ratio(ours, theirs).each, slow, atol=1e-9)


def test_models_that_all_agree_are_told_apart_only_where_they_differ():
    same, other = np.full((4, 2), 3.0), np.array([[3.0, 5.0]] * 4)
    np.testing.assert_array_equal(likelihood_ratio(same, other).each, [0.5, 1.0])


def slow_klom(ours, theirs):
    """By the published formula."""
    ours, theirs = np.clip(ours, -100, 100), np.clip(theirs, -100, 100)
    both = np.concatenate([ours, theirs])
    edges = np.linspace(both.min(), both.max(), 21)
    p, q = (np.array([np.sum(np.digitize(one, edges) == i) for i in range(1, 21)]) for one in (ours, theirs))
    p, q = p / p.sum(), q / max(q.sum(), 1)
    return sum(a * math.log(a / max(b, 1e-5)) for a, b in zip(p, q, strict=True) if a > 0)


@given(
    arrays(np.float64, (6, 1), elements=st.floats(-150, 150)),
    arrays(np.float64, (8, 1), elements=st.floats(-150, 150)),
)
@settings(deadline=None)
def test_klom_is_that_of_the_published_formula(ours, theirs):
    most = max(np.clip(ours, -100, 100).max(), np.clip(theirs, -100, 100).max())
    if (np.clip(ours, -100, 100) == most).all():  # where the formula counts nothing at all
        return
    found = divergences_of_margins(ours, theirs)
    assert found == pytest.approx([slow_klom(ours[:, 0], theirs[:, 0])], abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_klom_of_many_samples_is_the_percentile_of_all(seed):
    ours, theirs = populations(seed, models=40, samples=30)
    slow = [slow_klom(ours[:, i], theirs[:, i]) for i in range(30)]
    np.testing.assert_allclose(divergences_of_margins(ours, theirs), slow, atol=1e-9)
    assert klom(ours, theirs) == pytest.approx(np.percentile(slow, 95), abs=1e-9)


def test_klom_sees_models_that_are_all_at_the_largest_margin():
    ours, theirs = np.full((5, 1), 200.0), np.arange(5.0)[:, None]
    assert klom(ours, theirs) == pytest.approx(math.log(1e5))
    theirs[:4] = 300.0  # beyond 100 they are alike
    assert klom(ours, theirs) == pytest.approx(math.log(5 / 4))
    assert klom(ours, ours) == 0


def slow_epsilon(ours, theirs):
    """The best of all attacks that say one thing inside an interval, and the other outside."""
    both = np.unique(np.concatenate([ours, theirs]))
    cuts = [-np.inf, *(both[:-1] + np.diff(both) / 2), np.inf]
    best = 0.0
    for low, high in itertools.combinations(cuts, 2):
        for says_ours in (True, False):
            caught, alarmed = (np.mean(((one > low) & (one < high)) == says_ours) for one in (ours, theirs))
            missed = 1 - caught
            if missed == 0 and alarmed == 0:
                return 50.0
            if missed > 0 and alarmed > 0:
                for a, b in ((missed, alarmed), (alarmed, missed)):
                    if 1 - 1e-5 - a > 0:
                        best = max(best, math.log(1 - 1e-5 - a) - math.log(b))
    return best


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0, 30.0])
def test_epsilon_is_that_of_the_best_of_all_thresholds(shift):
    ours, theirs = populations(1, models=9, samples=6, shift=shift)
    slow = [slow_epsilon(ours[:, i], theirs[:, i]) for i in range(6)]
    found = epsilon_score(ours, theirs)
    np.testing.assert_allclose(found.each, slow, atol=1e-9)
    assert found.epsilon == pytest.approx(np.median(slow))


def test_two_thresholds_find_what_one_does_not():
    inner, outer = np.linspace(-1, 1, 11)[:, None], np.array([[s * x] for s in (-1, 1) for x in range(2, 7)])
    assert epsilon_score(inner, outer).epsilon == 50
    assert epsilon_score(outer, inner).epsilon == 50


def test_points_halve_with_each_bucket_up_to_what_the_models_can_show():
    """Of 11 models a side: ⌈log 10⌉ = 3, so that an ε of 3 or more gets none."""
    theirs = np.arange(11.0)[:, None] % 2
    for ones, epsilon in ((6, 0.18), (8, 0.69), (9, 1.1), (10, 1.79)):
        ours = (np.arange(11)[:, None] < ones).astype(float)
        found = epsilon_score(ours, theirs)
        assert found.epsilon == pytest.approx(slow_epsilon(ours[:, 0], theirs[:, 0]))
        assert found.epsilon == pytest.approx(epsilon, abs=0.01)
        assert found.score == 0.5 ** math.floor(found.epsilon / 0.5)
    ours, theirs = (np.array([[0.0]] * few + [[1.0]] * (11 - few)) for few in (1, 10))
    assert epsilon_score(ours, theirs).epsilon == pytest.approx(math.log(10), abs=1e-3)
    assert epsilon_score(ours, theirs).score == 0.5**4
    assert epsilon_score(ours + 9, theirs).score == 0


def test_a_much_narrower_distribution_is_told_at_once():
    wide = np.linspace(-1, 1, 9)[:, None]
    assert epsilon_score(wide * 0.009, wide).each == [50]
    assert epsilon_score(wide * 0.011, wide).each < 50


def test_the_deviation_by_hand():
    ours, theirs = [[1.0, 0.0], [3.0, 2.0]], [[5.0, 0.0], [7.0, 0.0], [9.0, 3.0]]
    np.testing.assert_allclose(deviations(ours, theirs), [(2 - 7) / 2, 0], atol=1e-12)
    assert deviation(ours, theirs) == pytest.approx(1.25)


def test_two_populations_of_one_distribution_are_at_the_floor():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=(2, 60, 50))
    assert likelihood_ratio(ours, theirs).auc == pytest.approx(0.49, abs=0.03)
    assert deviation(ours, theirs) == pytest.approx(math.sqrt(2 / 60) * math.sqrt(2 / math.pi), abs=0.03)
    assert klom(theirs, theirs) < 1e-12
    assert epsilon_score(theirs, theirs).score == 1


def test_a_population_that_is_off_is_found():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=(2, 60, 50))
    for off in (ours + 3, ours - 3, 9 * ours):  # also where no mean has moved
        assert likelihood_ratio(off, theirs).auc > 0.8
        assert klom(off, theirs) > klom(ours, theirs) + 1
        assert epsilon_score(off, theirs).score < epsilon_score(ours, theirs).score / 2
    assert deviation(ours - 3, theirs) == pytest.approx(3, abs=0.4)


@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_no_population_is_refused(measure):
    good, few = np.arange(12.0).reshape(4, 3), 3 if measure is likelihood_ratio else 2
    with pytest.raises(InputError, match=rf"unlearned has 1 models \(rows\); this measure needs {few} or more"):
        measure(good[:1], good)
    with pytest.raises(InputError, match=rf"retrained has {few - 1} models"):
        measure(good, good[: few - 1])
    with pytest.raises(InputError, match=r"unlearned has 3 samples \(columns\) and retrained 2; .* same order"):
        measure(good, good[:, :2])
    with pytest.raises(InputError, match="unlearned must be a table"):
        measure(good[0], good)
    for bad in (np.nan, np.inf):
        broken = good.copy()
        broken[1, 2] = bad
        with pytest.raises(InputError, match=f"retrained contains {bad} at 1, 2"):
            measure(good, broken)
