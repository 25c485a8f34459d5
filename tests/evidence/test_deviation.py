"""|z| against one made by hand in loops, its floor, and what it says of labels and of numbers."""

import numpy as np
import pytest

from excise.evidence.deviation import Deviation, deviation, deviations
from excise.evidence.evaluation import GroupPredictions, score
from excise.task.predictions import Predictions

MODELS, SAMPLES = 6, 9


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def slow(one, others):
    """z by the formula, a sample at a time."""
    k = len(others)
    variances = []
    for i in range(len(one)):
        mean = sum(other[i] for other in others) / k
        variances.append(sum((other[i] - mean) ** 2 for other in others) / (k - 1))
    average = sum(variances) / len(variances)
    found = []
    for i in range(len(one)):
        mean = sum(other[i] for other in others) / k
        shrunk = ((k - 1) * variances[i] + 4 * average) / (k + 3)
        found.append((one[i] - mean) / (shrunk * (1 + 1 / k)) ** 0.5)
    return found


@pytest.mark.parametrize("models", [3, MODELS])
def test_by_hand(models, rng):
    retrained = rng.standard_normal((models, SAMPLES)) * np.arange(1, SAMPLES + 1)
    before, after = rng.standard_normal((2, SAMPLES)) * 5
    found = deviation(before, after, retrained)
    signed = deviation(before, after, retrained, signed=True)
    for name, scores in (("original", before), ("unlearned", after)):
        z = slow(scores, list(retrained))
        assert getattr(found, name) == pytest.approx(np.mean(np.abs(z)))
        assert getattr(signed, name) == pytest.approx(np.mean(z))
    floor = [slow(retrained[k], [one for j, one in enumerate(retrained) if j != k]) for k in range(models)]
    assert found.retrained == pytest.approx(np.abs(floor).mean(axis=1))
    assert signed.retrained == pytest.approx(np.mean(floor, axis=1))
    assert found.floor == pytest.approx(np.mean(found.retrained))
    assert found.samples == SAMPLES


def test_a_retrained_model_is_at_the_floor_and_a_shift_shows_its_size(rng):
    centres = rng.standard_normal(4000) * 3
    retrained = centres + rng.standard_normal((12, 4000))
    fresh = centres + rng.standard_normal(4000)
    found = deviation(fresh + 3, fresh, retrained)
    assert found.unlearned == pytest.approx(np.sqrt(2 / np.pi), abs=0.03)  # of a standard normal
    assert found.floor == pytest.approx(found.unlearned, abs=0.03)
    assert found.original == pytest.approx(3 / np.sqrt(1 + 1 / 12), abs=0.15)
    assert found.gap.share == pytest.approx(0, abs=0.02)


def test_how_far_beyond_the_usual():
    assert Deviation(1.0, 3.0, (0.5, 1.5), 9).beyond_usual == 2.0
    assert Deviation(2.0, 3.0, (0.5, 1.5), 9).beyond_usual == 1.5


def test_too_few_models_or_such_that_agree_have_none(rng):
    groups = [rng.standard_normal(size) for size in (4, 5, 6)]
    other = [group + 1 for group in groups]
    assert deviations(groups, other, [groups, other]) is None
    assert deviations(groups, other, [groups] * 3) is None
    found = deviations(groups, other, [groups, other, [group - 1 for group in groups]])
    assert [one.samples for one in (found.forget, found.retain, found.test, found.forget_signed)] == [4, 5, 6, 4]
    assert found.forget_signed.unlearned > found.forget_signed.original


def test_scores_of_classes_labels_and_numbers():
    classes = Predictions(np.log([[0.8, 0.1, 0.1], [0.25, 0.5, 0.25]]), np.array([0, 0]), np.ones(2))
    assert score(classes, numbers=False) == pytest.approx(np.log([4, 1 / 3]))
    labels = Predictions(np.array([[2.0, -1.0]]), np.array([[1.0, 1.0]]), np.ones(1))
    assert score(labels, numbers=False).tolist() == [2.0, -1.0]  # the log-odds of each label
    numbers = Predictions(np.array([[3.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 4.0], [1.0, 1.0]]), np.ones(2))
    assert score(numbers, numbers=True).tolist() == [-5.0, 0.0]
    flat = Predictions(np.array([2.0]), np.array([[3.5]]), np.ones(1))
    assert score(flat, numbers=True).tolist() == [-1.5]
    assert [one.tolist() for one in GroupPredictions(flat, numbers, flat).scores(numbers=True)] == [
        [-1.5],
        [-5.0, 0.0],
        [-1.5],
    ]
