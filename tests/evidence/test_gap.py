"""The measure of forgetting itself: what must score 0, what must score 1, and the hole it must not have."""

import numpy as np
import pytest
from scipy.stats import entropy

from excise.evidence.gap import (
    Gap,
    Logits,
    average_gap,
    divergence,
    divergence_gap,
    fit_temperature,
    margin_gap,
    tug_of_war,
)

CLASSES = 5


@pytest.fixture
def models():
    """Retrained models that differ a little, and an original that is sure of the samples it was trained on."""
    rng = np.random.default_rng(0)
    labels, held_out_labels = rng.integers(0, CLASSES, 60), rng.integers(0, CLASSES, 200)

    def logits(labels, confidence):
        return confidence * np.eye(CLASSES)[labels] + rng.standard_normal((len(labels), CLASSES))

    forget, held_out = logits(labels, 2.0), logits(held_out_labels, 2.0)
    retrained = [
        Logits(forget + 0.3 * rng.standard_normal(forget.shape), held_out + 0.3 * rng.standard_normal(held_out.shape))
        for _ in range(4)
    ]
    original = Logits(forget + 6 * np.eye(CLASSES)[labels], held_out + 0.3 * rng.standard_normal(held_out.shape))
    return retrained, original, labels, held_out_labels


def shares(models, model):
    retrained, original, labels, held_out_labels = models
    return (
        divergence_gap(model, original, retrained, calibrated=False).share,
        divergence_gap(model, original, retrained, calibrated=True).share,
        margin_gap(model, original, retrained, labels, held_out_labels).share,
    )


def test_the_original_scores_one(models):
    assert shares(models, models[1]) == pytest.approx((1, 1, 1))


def test_another_retraining_scores_zero(models):
    retrained, *rest = models
    for share in shares((retrained[:3], *rest), retrained[3]):
        assert abs(share) < 0.05


def test_softened_outputs_do_not_count_as_forgotten(models):
    """Dividing the logits forgets nothing, yet brings the plain divergence down."""
    plain, calibrated, margin = shares(models, models[1].at_temperature(1.8))
    assert plain < 0.8
    assert calibrated == pytest.approx(1, abs=0.02)
    assert margin == pytest.approx(1, abs=0.05)


def test_half_way_is_between(models):
    retrained, original, *_ = models
    half = Logits((original.forget + retrained[0].forget) / 2, original.held_out)
    assert all(0.05 < share < 0.7 for share in shares(models, half))


def test_divergence_is_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 6, 4))
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (a, b))
    assert divergence(a, b) == pytest.approx(entropy(p, q, axis=1).mean())


def test_temperature_is_recovered():
    logits = np.random.default_rng(0).standard_normal((50, 4)) * 5
    assert fit_temperature(logits * 2.5, [logits]) == pytest.approx(2.5, rel=1e-3)


def test_gaps_are_pooled_before_they_are_divided():
    assert (Gap(1, 3, 0) + Gap(2, 3, 1)).share == pytest.approx((3 - 1) / (6 - 1))


def test_on_held_out_samples_too(models):
    retrained, original, *_ = models
    gap = divergence_gap(original, original, retrained, calibrated=False, on="held_out")
    by_hand = np.mean([divergence(other.held_out, original.held_out) for other in retrained])
    assert gap.model == pytest.approx(by_hand)


def test_one_retrained_model_has_no_floor(models):
    retrained, original, labels, held_out_labels = models
    assert np.isnan(divergence_gap(original, original, retrained[:1], calibrated=True).floor)
    assert np.isnan(margin_gap(original, original, retrained[:1], labels, held_out_labels).floor)


def test_figures_side_by_side():
    truth = {"UA": 0.4, "RA": 1.0, "TA": 0.8, "MIA": 0.5}
    assert average_gap(truth, truth) == 0
    assert average_gap({"UA": 0.0, "RA": 0.9, "TA": 0.8, "MIA": 0.8}, truth) == pytest.approx((0.4 + 0.1 + 0 + 0.3) / 4)
    assert tug_of_war([0.6, 0.9, 0.8], [0.4, 1.0, 0.8]) == pytest.approx(0.8 * 0.9)
