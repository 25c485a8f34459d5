"""Metrics against scikit-learn and values by hand, and the re-identification protocol against a slow version."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, root_mean_squared_error

from excise import InputError
from excise.errors import UndefinedWarning
from excise.evidence.utility import retrieval, utility
from excise.task.predictions import Predictions


def answered(outputs, targets, losses=None):
    outputs, targets = np.asarray(outputs, dtype=float), np.asarray(targets)
    return Predictions(outputs, targets, np.zeros(len(outputs)) if losses is None else np.asarray(losses, dtype=float))


def quick(answers, **options):
    return utility(answers, **{"resamples": 20, **options})


# --- which metric ---


@pytest.mark.parametrize(
    ("outputs", "targets", "metric"),
    [
        (np.zeros((4, 3)), [0, 1, 2, 0], "accuracy"),
        (np.zeros(4), [0.0, 1.0, 1.0, 0.0], "accuracy"),
        (np.zeros((4, 1)), [[0.0], [1.0], [1.0], [0.0]], "accuracy"),
        (np.zeros((4, 1)), [0, 1, 1, 0], "accuracy"),
        (np.zeros(4), [True, False, True, False], "accuracy"),
        (np.zeros((2, 3)), [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], "micro-f1"),
        (np.zeros((2, 2)), [[True, False], [True, True]], "micro-f1"),
        (np.zeros(3), [0.5, 1.0, 0.0], "rmse"),
        (np.zeros((3, 1)), [0.5, 1.0, 0.0], "rmse"),
        (np.zeros((2, 2)), [[0.5, 1.0], [3.0, 0.0]], "rmse"),
        (np.zeros(3), [0, 1, 7], "rmse"),
    ],
)
def test_the_kind_of_task_picks_the_metric(outputs, targets, metric):
    assert quick(answered(outputs, targets)).metric == metric


# --- values ---


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 1000))
def test_accuracy_is_scikit_learns_with_wilsons_interval(count, classes, seed):
    rng = np.random.default_rng(seed)
    logits, targets = rng.standard_normal((count, classes)), rng.integers(0, classes, count)
    losses = rng.random(count)
    result = quick(answered(logits, targets, losses))
    assert result.value == pytest.approx(accuracy_score(targets, logits.argmax(axis=1)))
    wilson = binomtest(round(result.value * count), count).proportion_ci(0.95, method="wilson")
    assert result.interval == pytest.approx((wilson.low, wilson.high))
    assert (result.loss, result.count) == (pytest.approx(losses.mean()), count)


def test_wilson_by_hand():
    """8 of 10 at z = 1.959964: (0.8 + z²/20 ± z √(0.016 + z²/400)) / (1 + z²/10)."""
    logits = np.array([[1.0, 0.0]] * 10)
    result = utility(answered(logits, [0] * 8 + [1] * 2))
    assert result.interval == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert utility(answered(logits[:1], [0])).interval == pytest.approx((0.206549, 1), abs=1e-6)  # 1 / (1 + z²)


def test_one_logit_is_a_class_too():
    assert quick(answered([2.0, -1.0, 0.5, -3.0], [1.0, 0.0, 0.0, 1.0])).value == 0.5


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 1000))
def test_micro_f1_is_scikit_learns(count, labels, seed):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((count, labels))
    targets = (rng.random((count, labels)) < 0.4).astype(np.float32)
    targets[0, 0] = 1  # defined
    result = quick(answered(logits, targets), metric="micro-f1")
    assert result.value == pytest.approx(f1_score(targets.ravel(), logits.ravel() > 0))
    if labels > 1:
        assert result.value == pytest.approx(f1_score(targets, logits > 0, average="micro", zero_division=0))
    assert 0 <= result.interval[0] <= result.value <= result.interval[1] <= 1


def test_micro_f1_without_any_label_is_not_defined():
    with pytest.warns(UndefinedWarning, match="no label that is 1"):
        result = utility(answered([[-1.0, -2.0]], [[0.0, 0.0]]))
    assert np.isnan([result.value, *result.interval]).all()


def test_micro_f1_intervals_are_wide_for_few_samples_and_narrow_for_many():
    rng = np.random.default_rng(0)
    targets = (rng.random((3000, 20)) < 0.3).astype(float)
    said = np.where(rng.random(targets.shape) < 0.1, 1 - targets, targets) * 2 - 1
    few, many = (utility(answered(said[:n], targets[:n])).interval for n in (1, 3000))
    assert few[1] - few[0] > 0.5
    assert many[1] - many[0] < 0.03
    perfect = utility(answered(targets[:50] * 2 - 1, targets[:50]))
    assert perfect.value == 1
    assert 0.95 < perfect.interval[0] < 1  # a bootstrap would say 1


def test_micro_f1_intervals_see_labels_that_fall_together():
    """Samples that are all right or all wrong: the interval is that of a share of samples, not of labels."""
    right = np.arange(200) % 2 == 0
    targets = np.ones((200, 40))
    low, high = utility(answered(np.where(right[:, None], 1.0, -1.0) * targets, targets)).interval
    share = np.random.default_rng(5).binomial(200, 0.5, 20_000) / 200  # F1 = 2 s / (1 + s)
    assert (low, high) == pytest.approx(np.quantile(2 * share / (1 + share), [0.025, 0.975]), abs=0.015)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 1000))
def test_rmse_is_scikit_learns(count, width, seed):
    rng = np.random.default_rng(seed)
    outputs, targets = rng.standard_normal((2, count, width))
    result = quick(answered(outputs, targets))
    assert result.metric == "rmse"
    assert result.value == pytest.approx(root_mean_squared_error(targets.ravel(), outputs.ravel()))
    assert result.interval[0] <= result.value <= result.interval[1]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 30])
def test_rmse_intervals_hold_what_they_promise(count):
    rng = np.random.default_rng(count)
    held = 0
    for _ in range(200):
        low, high = quick(answered(rng.standard_normal(count) * 3, np.zeros(count)), metric="rmse").interval
        held += low <= 3 <= high
    assert held >= 0.91 * 200


def test_the_same_seed_gives_the_same_interval():
    heavy = answered(np.random.default_rng(0).standard_cauchy(40), np.zeros(40))
    one, same, other = (utility(heavy, metric="rmse", seed=seed, resamples=50).interval for seed in (1, 1, 2))
    assert one == same != other


# --- retrieval ---


def slow_retrieval(queries, ids, cameras, gallery, gallery_ids, gallery_cameras, own):
    """Row by row, with scikit-learn's average precision."""
    precisions, firsts, skipped = [], [], 0
    for q, (feature, name, camera) in enumerate(zip(queries, ids, cameras, strict=True)):
        scores, hits = [], []
        for g, (other, other_name, other_camera) in enumerate(zip(gallery, gallery_ids, gallery_cameras, strict=True)):
            if (own and g == q) or (name == other_name and camera == other_camera):
                continue
            scores.append(feature @ other / np.sqrt(feature @ feature) / np.sqrt(other @ other))
            hits.append(name == other_name)
        if any(hits):
            precisions.append(average_precision_score(hits, scores))
            firsts.append(hits[int(np.argmax(scores))])
        else:
            skipped += 1
    return np.mean(precisions), np.mean(firsts), len(precisions), skipped


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(2, 25), st.booleans(), st.integers(0, 10_000))
def test_retrieval_is_the_slow_protocol(queries, images, own, seed):
    rng = np.random.default_rng(seed)
    probes, ids, cameras = rng.standard_normal((queries, 4)), rng.integers(0, 4, queries), rng.integers(0, 3, queries)
    gallery, gallery_ids = rng.standard_normal((images, 4)), rng.integers(0, 4, images)
    gallery_cameras = rng.integers(0, 3, images)
    probes[0], ids[0], cameras[0] = gallery[0], gallery_ids[0], gallery_cameras[0] + 1  # one match at least
    if own:
        probes = np.concatenate([probes, probes[::-1] + 0.1])
        ids, cameras = np.concatenate([ids, ids[::-1]]), np.concatenate([cameras, cameras[::-1] + 1])
        result = retrieval(probes, ids, query_cameras=cameras)
        truth = slow_retrieval(probes, ids, cameras, probes, ids, cameras, own)
    else:
        result = retrieval(probes, ids, gallery, gallery_ids, query_cameras=cameras, gallery_cameras=gallery_cameras)
        truth = slow_retrieval(probes, ids, cameras, gallery, gallery_ids, gallery_cameras, own)
    assert (result.mean_average_precision, result.rank1, result.queries, result.skipped) == pytest.approx(truth)


def test_retrieval_by_hand():
    """Hits at ranks 2 and 3 of 4: (1/2 + 2/3) / 2; and at rank 1 of another query: 1."""
    angles = np.deg2rad([10, 20, 30, 80])
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    result = retrieval([[1.0, 0.0], [0.0, 5.0]], ["ann", "bob"], gallery, ["eve", "ann", "ann", "bob"])
    assert result.mean_average_precision == pytest.approx((7 / 12 + 1) / 2)
    assert (result.rank1, result.queries, result.skipped) == (0.5, 2, 0)


def test_images_of_the_same_identity_and_camera_are_ignored():
    gallery = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.5]]  # the very image, a stranger, the same person elsewhere
    query, ids = [[1.0, 0.0]], [1, 2, 1]
    assert retrieval(query, [1], gallery, ids).rank1 == 1
    strict = retrieval(query, [1], gallery, ids, query_cameras=[0], gallery_cameras=[0, 0, 1])
    assert (strict.mean_average_precision, strict.rank1) == (0.5, 0)


def test_queries_without_a_match_are_skipped_and_counted():
    result = retrieval([[1.0, 0.0], [1.0, 0.0]], [1, 9], [[1.0, 0.0], [0.0, 1.0]], [1, 2])
    assert (result.mean_average_precision, result.queries, result.skipped) == (1, 1, 1)
    with pytest.warns(UndefinedWarning, match="no query has a match"):
        nothing = retrieval([[1.0, 0.0], [1.0, 1.0]], [1, 2])  # no image but itself
    assert np.isnan(nothing.mean_average_precision)
    assert (nothing.queries, nothing.skipped) == (0, 2)


def test_features_that_say_nothing_score_by_chance_whatever_the_order():
    """All features alike: every image ties, so precision and rank 1 are the share of matches."""
    features = np.tile([[0.3, 0.7, 0.1]], (8, 1)) * np.arange(1, 9)[:, None]  # of one direction
    for order in (np.arange(8), np.random.default_rng(0).permutation(8)):
        result = retrieval(features, np.repeat([1, 2], 4)[order])
        assert (result.mean_average_precision, result.rank1) == pytest.approx((3 / 7, 3 / 7))


def test_some_of_the_queries_as_a_utility():
    """Precisions 1/1, skipped and 1/2: the last two have a mean of 1/2 over one query."""
    found = retrieval([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [1, 9, 2], [[1.0, 0.0], [1.0, 1.0]], [1, 2])
    assert found.precisions == pytest.approx([1, np.nan, 0.5], nan_ok=True)
    part = found.of(slice(1, None), answered(np.zeros((2, 2)), [0, 1], losses=[1.0, 2.0]))
    assert (part.metric, part.value, part.loss, part.count) == ("mAP", 0.5, 1.5, 1)
    assert part.interval[1] - part.interval[0] > 0.8
    everything = found.of(slice(None), answered(np.zeros((3, 2)), [0, 1, 1]))
    assert everything.value == found.mean_average_precision == 0.75
    with pytest.warns(UndefinedWarning, match="none of these queries"):
        assert np.isnan(found.of(slice(1, 2), answered(np.zeros((1, 2)), [0])).value)


def test_a_large_gallery_is_searched_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    features, ids = rng.standard_normal((30, 5)), rng.integers(0, 6, 30)
    whole = retrieval(features, ids)
    monkeypatch.setattr("excise.evidence.utility.MOST_SIMILARITIES", 70)
    assert retrieval(features, ids) == whole


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: utility(np.zeros(3)), "answers must be a Predictions.*ndarray"),
        (lambda: utility(answered(np.zeros((0, 2)), np.zeros(0, int))), "answers is empty"),
        (lambda: utility(answered([[np.nan, 0.0], [1.0, 0.0]], [0, 1])), "NaN for 1 of 2 samples .first: 0."),
        (lambda: utility(Predictions(np.zeros((2, 2)), np.zeros(3, int), np.zeros(2))), "2 outputs, 3 targets and 2"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), metric="acuracy"), "Did you mean 'accuracy'"),
        (lambda: utility(answered([[1.0, 0.0]], [[0.5, 0.5]]), metric="accuracy"), "'accuracy' needs logits"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), metric="micro-f1"), r"'micro-f1' needs.*\(1, 2\).*int64"),
        (lambda: utility(answered([1.0], [0.5]), metric="micro-f1"), "'micro-f1' needs targets of 0 and 1"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), metric="rmse"), "'rmse' needs targets in the shape"),
        (lambda: utility(answered([np.inf], [0.5])), "rmse has no value"),
        (lambda: utility(answered([1.0], [np.nan])), "rmse has no value"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), level=95), "level must be"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), resamples=0), "resamples must be"),
        (lambda: utility(answered([[1.0, 0.0]], [0]), seed=-1), "seed must be"),
        (lambda: retrieval([[1.0]], [1, 2]), r"query_ids must have one entry per row of queries \(1\).*\(2,\)"),
        (lambda: retrieval([[1.0]], [1], [[1.0]], None), "gallery_ids must have one entry per row of gallery"),
        (lambda: retrieval([[1.0]], [1], None, [1]), "gallery must be passed with gallery_ids"),
        (lambda: retrieval([[1.0]], [1], gallery_cameras=[1]), "gallery must be passed with"),
        (lambda: retrieval([[1.0]], [1], [[1.0]], [1], query_cameras=[1]), "cameras must be passed together"),
        (lambda: retrieval([[1.0]], [1], [[1.0]], [1], gallery_cameras=[1]), "cameras must be passed together"),
        (lambda: retrieval([[1.0]], [1], query_cameras=[1, 2]), "query_cameras must have one entry"),
        (lambda: retrieval([[1.0]], [1], [[1.0, 2.0]], [1]), "queries has 1 features and gallery 2"),
        (lambda: retrieval([[1.0, 0.0], [0.0, 0.0]], [1, 1]), "queries has only zeros in row 1"),
        (lambda: retrieval([[1.0, np.nan]], [1]), "queries contains nan at 0, 1"),
        (lambda: retrieval([], []), "queries must be a table"),
    ],
)
def test_bad_input_is_named(call, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=message):
            call()
