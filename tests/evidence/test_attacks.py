"""Attacks against scikit-learn and slow obvious versions, and intervals that must hold for a handful of samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from excise import InputError
from excise.evidence.attacks import (
    confidence,
    entropy_score,
    likelihood_ratio_attack,
    loss_score,
    margin,
    modified_entropy_score,
    threshold_attack,
)

tied_scores = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=30)
loose_scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)
scores = st.one_of(tied_scores, loose_scores)
logit_tables = st.integers(2, 5).flatmap(
    lambda classes: st.tuples(
        st.lists(st.lists(st.floats(-6, 6), min_size=classes, max_size=classes), min_size=1, max_size=6),
        st.integers(0, classes - 1),
    )
)


def quick(members, non_members, **options):
    return threshold_attack(members, non_members, **{"resamples": 20, **options})


def as_labels(members, non_members):
    return np.repeat([1, 0], [len(members), len(non_members)]), np.concatenate([members, non_members])


def probabilities(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


# --- scores ---


@pytest.mark.slow
@given(logit_tables)
def test_scores_are_those_of_the_naive_formulas(table):
    logits, label = np.array(table[0]), table[1]
    p = probabilities(logits)
    labels = np.full(len(logits), label)
    true = p[:, label]
    assert confidence(logits, labels) == pytest.approx(true)
    assert margin(logits, labels) == pytest.approx(np.log(true / (1 - true)), abs=1e-9)
    assert entropy_score(logits) == pytest.approx(np.sum(p * np.log(p), axis=1))
    for row, score in zip(p, modified_entropy_score(logits, labels), strict=True):
        others = [q for i, q in enumerate(row) if i != label]
        entropy = -(1 - row[label]) * np.log(row[label]) - sum(q * np.log(1 - q) for q in others)
        assert score == pytest.approx(-entropy)


def test_a_loss_score_is_minus_scikit_learns_log_loss():
    logits, labels = np.array([[0.3, -1.0, 2.0], [1.0, 0.0, 0.5]]), np.array([2, 1])
    losses = -np.log(confidence(logits, labels))
    assert -loss_score(losses).mean() == pytest.approx(log_loss(labels, probabilities(logits), labels=[0, 1, 2]))


@pytest.mark.slow
@given(logit_tables, st.floats(-1e3, 1e3))
def test_shifting_a_row_of_logits_changes_nothing(table, shift):
    logits, labels = np.array(table[0]), np.full(len(table[0]), table[1])
    for score in (confidence, margin, modified_entropy_score):
        assert score(logits + shift, labels) == pytest.approx(score(logits, labels), abs=1e-9)
    assert entropy_score(logits + shift) == pytest.approx(entropy_score(logits), abs=1e-9)


def test_modified_entropy_tells_certain_and_right_from_certain_and_wrong():
    right, unsure, wrong = modified_entropy_score([[900.0, 0, 0], [0, 0, 0], [0, 900.0, 0]], [0, 0, 0])
    assert right == 0  # the largest there is
    # −Mentr of (1/3, 1/3, 1/3) = 2/3 log(1/3) + 2/3 log(2/3)
    assert unsure == pytest.approx(2 / 3 * np.log(1 / 3) + 2 / 3 * np.log(2 / 3))
    assert wrong == pytest.approx(-1800 + np.log(2))  # log p_y = −900, log(1 − p_i) = −900 + log 2
    assert entropy_score([[900.0, 0, 0], [0, 900.0, 0]]).tolist() == [0, 0]  # which plain entropy does not


def test_almost_certain_samples_keep_their_order():
    """With p for 1 − p, or log(1 − p) of a rounded p, they would tie or be infinite."""
    logits, labels = np.array([[gap, 0.0, 0.0] for gap in (20.0, 40.0, 60.0, 300.0)]), np.zeros(4, int)
    rest = 2 * np.exp(-logits[:, 0])  # 1 − p_y; Mentr ≈ (1 − p_y)² + Σ p_i² = 1.5 (1 − p_y)²
    assert modified_entropy_score(logits, labels) == pytest.approx(-1.5 * rest**2, rel=1e-6)
    wrong = modified_entropy_score(logits, labels + 1)
    assert wrong == pytest.approx(-2 * logits[:, 0], rel=0.05)
    assert margin(logits, labels) == pytest.approx(logits[:, 0] - np.log(2))


def test_one_half_each_is_one_bit():
    assert entropy_score([[3.0, 3.0]]) == pytest.approx([-np.log(2)])
    assert modified_entropy_score([[3.0, 3.0]], [1]) == pytest.approx([-np.log(2)])
    assert confidence([[3.0, 3.0]], [1]) == pytest.approx([0.5])


# --- the threshold attack ---


@pytest.mark.slow
@given(scores, scores)
def test_auc_is_scikit_learns_with_ties(members, non_members):
    attack = quick(members, non_members)
    assert attack.auc == pytest.approx(roc_auc_score(*as_labels(members, non_members)))
    assert attack.auc + quick(non_members, members).auc == pytest.approx(1)
    assert 0 <= attack.interval[0] <= attack.auc <= attack.interval[1] <= 1


@pytest.mark.slow
@settings(max_examples=25)
@given(scores, scores)
def test_balanced_accuracy_is_that_of_the_best_threshold(members, non_members):
    truth, values = as_labels(members, non_members)
    thresholds = [*values, values.max() + 1]
    best = max(balanced_accuracy_score(truth, values >= threshold) for threshold in set(thresholds))
    assert quick(members, non_members).balanced_accuracy == pytest.approx(best)


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(100, 420), st.integers(2, 400), st.integers(0, 2**20))
def test_tpr_is_that_of_the_slow_search_over_all_thresholds(members, non_members, distinct, seed):
    rng = np.random.default_rng(seed)
    inside = np.round(rng.standard_normal(members) + 1.5, 1) if seed % 2 else rng.integers(0, distinct, members)
    outside = rng.standard_normal(non_members) if seed % 2 else rng.integers(0, distinct, non_members)
    slow = max(
        np.mean(inside >= threshold)
        for threshold in [*inside, *outside, np.inf]
        if 100 * np.sum(outside >= threshold) <= non_members
    )
    attack = quick(inside, outside)
    assert attack.tpr_at_fpr == pytest.approx(slow)
    assert attack.tpr_interval[0] <= slow <= attack.tpr_interval[1]


def test_too_few_non_members_for_one_percent_give_nan():
    few, enough = quick([1.0], np.arange(99.0)), quick([1000.0], np.arange(100.0))
    assert np.isnan([few.tpr_at_fpr, *few.tpr_interval]).all()
    assert enough.tpr_at_fpr == 1


@settings(max_examples=30)
@given(st.integers(1, 600), st.integers(1, 600), st.integers(0, 1000))
def test_the_curve_is_thin_rising_and_has_the_same_area(members, non_members, seed):
    rng = np.random.default_rng(seed)
    attack = quick(rng.standard_normal(members) + 0.7, np.round(rng.standard_normal(non_members), 2))
    assert len(attack.fpr) == len(attack.tpr) <= 200
    assert (attack.fpr[0], attack.tpr[0], attack.fpr[-1], attack.tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(attack.fpr) >= 0).all()
    assert (np.diff(attack.tpr) >= 0).all()
    assert np.trapezoid(attack.tpr, attack.fpr) == pytest.approx(attack.auc, abs=0.01)
    assert (attack.members, attack.non_members) == (members, non_members)


def test_the_same_seed_gives_the_same_interval():
    rng = np.random.default_rng(0)
    inside, outside = rng.standard_cauchy(30), rng.standard_normal(400)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    attacks = [threshold_attack(inside, outside, seed=seed, resamples=50) for seed in (1, 1, 2)]
    assert attacks[0].interval == attacks[1].interval
    assert attacks[0].interval != attacks[2].interval
    assert (before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_a_bootstrap_of_very_unequal_scores_is_the_obvious_one():
    """Half of the members far above and half far below: wider than any model of the scores, so resampling shows."""
    inside, outside = np.repeat([-9.0, 9.0], 100), np.random.default_rng(0).standard_normal(300)
    draws = np.random.default_rng(1).integers(0, 2, (20_000, 200)).mean(axis=1)  # the AUC is the share above
    assert threshold_attack(inside, outside, resamples=4000).interval == pytest.approx(
        np.quantile(draws, [0.025, 0.975]), abs=0.006
    )


def test_a_higher_level_is_wider():
    rng = np.random.default_rng(0)
    inside, outside = rng.standard_normal(30), rng.standard_normal(600)
    narrow, wide = (quick(inside, outside, level=level, resamples=200) for level in (0.8, 0.99))
    assert wide.interval[0] < narrow.interval[0] < narrow.interval[1] < wide.interval[1]
    assert wide.tpr_interval[1] > narrow.tpr_interval[1]


def test_many_samples_give_an_interval_as_narrow_as_the_closed_form():
    """Without a difference the AUC has the Mann-Whitney variance (m + n + 1) / 12mn."""
    rng = np.random.default_rng(0)
    low, high = threshold_attack(rng.standard_normal(800), rng.standard_normal(900), resamples=500).interval
    closed_form = 2 * norm.ppf(0.975) * np.sqrt((800 + 900 + 1) / (12 * 800 * 900))
    assert closed_form * 0.95 < high - low < closed_form * 1.15


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 3, 10, 20])
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_intervals_hold_what_they_promise_for_few_members(members, shift, spread):
    rng = np.random.default_rng(members)
    truth = norm.cdf(shift / np.hypot(1, spread))  # the chance that N(shift, spread²) is above N(0, 1)
    held = 0
    for _ in range(200):
        inside, outside = shift + spread * rng.standard_normal(members), rng.standard_normal(300)
        low, high = threshold_attack(inside, outside, resamples=100).interval
        held += low <= truth <= high
    assert held >= 0.90 * 200


def test_one_member_says_next_to_nothing():
    low, high = threshold_attack([100.0], np.random.default_rng(0).standard_normal(5000)).interval
    assert low == pytest.approx(0.025)  # Clopper and Pearson, one hit of one
    assert high == 1


def test_perfect_separation_of_a_few_is_not_certainty():
    low, high = threshold_attack(np.arange(10.0) + 100, np.arange(500.0) / 500).interval
    assert 0.6 < low < 0.9  # a bootstrap would say 1
    assert high == 1


@pytest.mark.slow
def test_tpr_intervals_hold_what_they_promise():
    rng = np.random.default_rng(0)
    truth = norm.sf(norm.ppf(0.99) - 2)
    for members, non_members in ((3, 100), (30, 2000)):
        held = 0
        for _ in range(150):
            attack = quick(2 + rng.standard_normal(members), rng.standard_normal(non_members), resamples=1)
            held += attack.tpr_interval[0] <= truth <= attack.tpr_interval[1]
        assert held >= 0.92 * 150


def test_a_tpr_interval_narrows_with_more_of_both():
    rng = np.random.default_rng(0)
    low, high = quick(3 + rng.standard_normal(5000), rng.standard_normal(20_000)).tpr_interval
    assert low < norm.sf(norm.ppf(0.99) - 3) < high
    assert high - low < 0.1


# --- the likelihood-ratio attack ---


def trainings(models, samples, seed, noise=1.0):
    """Margins of so many models: every sample has a mean and a spread of its own."""
    rng = np.random.default_rng(seed)
    spread = np.exp(0.4 * rng.standard_normal(samples))
    return 3 * rng.standard_normal(samples) + noise * spread * rng.standard_normal((models, samples)), spread


def test_z_is_that_of_the_slow_formula():
    models, _ = trainings(5, 7, 0)
    ours, theirs = models[0], models[1:]
    average = np.mean([np.var(theirs[:, i], ddof=1) for i in range(7)])
    for i, z in enumerate(likelihood_ratio_attack(ours, theirs).z):
        # 3 degrees of freedom of its own, 4 of the average; √(1 + 1/4) for the mean of 4 models
        variance = (3 * np.var(theirs[:, i], ddof=1) + 4 * average) / 7
        assert z == pytest.approx((ours[i] - theirs[:, i].mean()) / np.sqrt(variance * 1.25))


@pytest.mark.parametrize("models", [3, 6])
def test_another_retrained_model_cant_be_told(models):
    attacks = []
    for seed in range(30):
        margins, _ = trainings(models + 1, 60, seed)
        attacks.append(likelihood_ratio_attack(margins[0], margins[1:], resamples=50))
    for kind in ("remembered", "changed"):
        aucs = [getattr(attack, kind).auc for attack in attacks]
        assert np.mean(aucs) == pytest.approx(0.5, abs=0.03)
        held = [getattr(attack, kind).interval[0] <= 0.5 <= getattr(attack, kind).interval[1] for attack in attacks]
        assert np.mean(held) >= 0.85
    assert np.mean([attack.mean_z for attack in attacks]) == pytest.approx(0, abs=0.1)
    # about the normal's 4.6 %
    assert np.mean([attack.beyond for attack in attacks]) == pytest.approx(0.046, abs=0.025)
    assert np.mean([attack.retrained_beyond for attack in attacks]) == pytest.approx(0.046, abs=0.025)


def test_what_is_still_remembered_stands_out_on_one_side_only():
    margins, spread = trainings(5, 60, 0)
    high, low = (likelihood_ratio_attack(margins[0] + side * 4 * spread, margins[1:]) for side in (1, -1))
    assert high.remembered.auc > 0.9 > 0.1 > low.remembered.auc
    assert high.changed.auc > 0.9
    assert low.changed.auc > 0.9
    assert high.mean_z > 2.5
    assert low.mean_z < -2.5
    assert high.beyond > 0.7 > 0.15 > high.retrained_beyond
    assert high.remembered.auc > max(high.retrained_aucs)


def test_easy_samples_are_no_evidence():
    """Where retraining gives the same high margins, a threshold sees members and the likelihood ratio does not."""
    margins, _ = trainings(5, 60, 1)
    easy = margins + 20
    assert threshold_attack(easy[0], margins[1]).auc > 0.95
    assert likelihood_ratio_attack(easy[0], easy[1:]).remembered.auc == pytest.approx(0.5, abs=0.12)


@settings(max_examples=20)
@given(st.floats(-50, 50), st.floats(0.1, 10))
def test_the_attack_does_not_depend_on_the_unit_of_margins(shift, scale):
    margins, _ = trainings(4, 12, 3)
    before = likelihood_ratio_attack(margins[0], margins[1:], resamples=5)
    after = likelihood_ratio_attack(shift + scale * margins[0], shift + scale * margins[1:], resamples=5)
    assert after.z == pytest.approx(before.z)
    assert after.retrained_aucs == pytest.approx(before.retrained_aucs)


def test_a_model_that_differs_on_all_samples_at_once_shows_in_the_retrained_aucs():
    margins, _ = trainings(5, 200, 4)
    margins[2] += 3  # a retrained model that is surer of everything
    aucs = likelihood_ratio_attack(margins[0], margins[1:]).retrained_aucs
    assert len(aucs) == 4
    assert int(np.argmax(aucs)) == 1
    assert aucs[1] > 0.9


def test_one_sample_gives_a_wide_interval():
    margins, _ = trainings(5, 1, 0)
    low, high = likelihood_ratio_attack(margins[0] + 2, margins[1:]).remembered.interval
    assert high - low > 0.6


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: threshold_attack([], [1.0]), r"members must be one list of at least one number.*\(0,\)"),
        (lambda: threshold_attack([1.0], []), "non_members must be one list"),
        (lambda: threshold_attack([[1.0]], [1.0]), r"members must be one list.*\(1, 1\)"),
        (lambda: threshold_attack([1.0, np.nan], [1.0]), r"members contains nan at 1 \(1 such"),
        (lambda: threshold_attack([1.0], [np.inf]), "non_members contains inf at 0"),
        (lambda: threshold_attack(["a"], [1.0]), "members must be numeric"),
        (lambda: threshold_attack([1.0], [1.0], level=95), "level must be .*0.95, not 95"),
        (lambda: threshold_attack([1.0], [1.0], resamples=0), "resamples must be .*not 0"),
        (lambda: threshold_attack([1.0], [1.0], seed=-1), "seed must be .*not -1"),
        (lambda: loss_score([np.nan]), "losses contains nan"),
        (lambda: entropy_score([[1.0], [2.0]]), r"logits has 1 class \(column\)"),
        (lambda: entropy_score([1.0, 2.0]), r"logits must be a table.*\(2,\)"),
        (lambda: entropy_score([[np.nan, 2.0]]), "logits contains nan at 0, 0"),
        (lambda: margin([[1.0, 2.0]], [2]), r"labels must be from 0 to 1 \(columns of logits\), not 2"),
        (lambda: margin([[1.0, 2.0]], [-1]), "labels must be from 0 to 1"),
        (lambda: confidence([[1.0, 2.0]], [0, 1]), r"one whole number per row of logits \(1\).*\(2,\)"),
        (lambda: modified_entropy_score([[1.0, 2.0]], [0.5]), "labels must be one whole number.*float64"),
        (lambda: likelihood_ratio_attack([1.0], [[1.0], [2.0]]), "retrained has 2 models.*3 or more times"),
        (lambda: likelihood_ratio_attack([1.0, 2.0], [[1.0], [2.0], [3.0]]), "1 samples .columns. and unlearned 2"),
        (lambda: likelihood_ratio_attack([1.0], [1.0, 2.0, 3.0]), "retrained must be a table"),
        (lambda: likelihood_ratio_attack([1.0], np.ones((4, 1))), "agree on every sample.*different seeds"),
        (lambda: likelihood_ratio_attack([1.0], [[1.0], [1.0], [2.0]]), "agree on every sample"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
