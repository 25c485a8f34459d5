"""Removals against retraining: the data, the counting, where a series ends, and the verdicts."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.retrain.claims import judge, supported
from excise.reproduce.studies.retrain.measure import (
    ACCURACY,
    LEFT,
    OURS,
    PAPER,
    RETRAINED,
    SCRIPT,
    SLOPE,
    Settings,
    drawn_per_class,
    points,
    scores_over_removals,
)
from excise.reproduce.studies.retrain.plot import draw
from excise.training.exact import exact_fit

N = 40


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    labels = np.arange(N) % 2
    images = rng.normal(size=(N, 3)) + 2 * labels[:, None]
    data = TensorDataset(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))
    start = Task(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), data, data, weight_decay=0.1)
    return Task(exact_fit(start).model, start.loss, data, data, weight_decay=0.1)


def without(task, gone):
    return exact_fit(task, ids=np.setdiff1d(np.arange(N), gone)).model


def test_points_are_denser_at_the_beginning():
    assert points(Settings(removals=150, every=50)) == [0, 10, 20, 50, 100, 150]
    assert points(Settings(removals=1000, every=500)) == [0, 10, 20, 50, 100, 200, 500, 1000]


def test_as_many_samples_of_each_class_and_none_twice():
    labels = np.repeat(np.arange(10), 30)
    images = np.arange(300, dtype=np.float32)[:, None]
    data = drawn_per_class(images, labels, 7, np.random.default_rng(3))
    assert torch.bincount(data.tensors[1]).tolist() == [7] * 10
    assert len(data.tensors[0].unique()) == 70
    np.testing.assert_array_equal(labels[data.tensors[0][:, 0].long()], data.tensors[1])


def test_whoever_retrains_has_nothing_left(task):
    order, where, asked = [4, 9, 2, 30, 31], [0, 3, 5], []

    def forget(ids):
        asked.extend(ids)
        return without(task, asked)

    truths = [without(task, order[:count]) for count in where]
    found = scores_over_removals(task, forget, order, where, truths)
    assert asked == order
    assert found[LEFT][0] == 1
    assert max(found[LEFT][1:]) < 1e-3
    assert max(found[SLOPE]) < 1e-5


def test_whoever_does_nothing_has_all_left_and_requests_end_at_the_counts(task):
    order, where, asked = list(range(10)), [0, 3, 10], []

    def forget(ids):
        asked.append(list(ids))
        return task.model

    truths = [without(task, order[:count]) for count in where]
    told = []
    found = scores_over_removals(task, forget, order, where, truths, request=4, told=told.append)
    assert asked == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]
    assert told == [3, 4, 3]
    assert found[LEFT] == [1, 1, 1]
    # the objective without them is steep there: its slope is minus their part of the whole's
    images, labels = (part[:10] for part in task.train_set.tensors)
    error = task.model(images).softmax(1) - nn.functional.one_hot(labels, 2)
    wide = torch.cat([images, torch.ones(10, 1)], dim=1)
    weights = torch.cat([task.model.weight, task.model.bias[:, None]], dim=1)
    slope = -(error.T @ wide + 10 * 0.1 * weights) / (N - 10)
    assert found[SLOPE][2] == pytest.approx(slope.norm().item(), rel=1e-3)


def test_a_series_ends_where_the_model_is_ruined(task):
    ruined = copy.deepcopy(task.model)
    with torch.no_grad():
        ruined.weight.neg_()
        ruined.bias.neg_()
    asked = []

    def forget(ids):
        asked.extend(ids)
        return ruined

    found = scores_over_removals(task, forget, list(range(10)), [0, 2, 4, 6], [task.model] * 4)
    assert asked == [0, 1]
    assert [value is None for value in found[ACCURACY]] == [False, False, True, True]
    assert found[ACCURACY][1] < 0.5 < found[ACCURACY][0]


# ---------------------------------------------------------------------------------------------------- verdicts, plot

HELD, FALLS, RUINED = [0.9, 0.9, 0.89], [0.9, 0.86, 0.8], [0.9, 0.5, None]


def made_up(small=RUINED, large=HELD, left=0.5):
    def series(paper):
        gaps = [None if value is None else 1.0 for value in paper]
        paper_left = [1.0, left, None if paper[2] is None else left]
        fine = {ACCURACY: [HELD, HELD], SLOPE: [[0.0, 0.1, 0.2]] * 2, LEFT: [[1.0, 0.2, 0.3]] * 2}
        return {
            PAPER: {ACCURACY: [paper, paper], SLOPE: [gaps] * 2, LEFT: [paper_left] * 2},
            SCRIPT: fine,
            OURS: fine,
            RETRAINED: {ACCURACY: [HELD, HELD], SLOPE: [[0.0] * 3] * 2},
        }

    return {
        "removed": [0, 600, 1000],
        "samples": 1200,
        "sigma": {"0.01": [0.1, 0.01], "0.1": [1e-4, 1e-5]},
        "series": {"0.01": series(small), "0.1": series(large)},
    }


def test_supported_removals_of_each_run():
    assert [one.label for one in supported(made_up(), "0.01", PAPER)] == ["0", "0"]
    assert [one.label for one in supported(made_up(FALLS), "0.01", PAPER)] == ["600", "600"]
    assert [one.label for one in supported(made_up(), "0.1", PAPER)] == ["> 1000", "> 1000"]


@pytest.mark.parametrize(
    ("figures", "verdicts"),
    [
        ({}, ["not confirmed", "confirmed", "confirmed"]),
        ({"small": FALLS}, ["confirmed", "confirmed", "confirmed"]),
        ({"small": FALLS, "large": FALLS, "left": 2.0}, ["confirmed", "not confirmed", "not confirmed"]),
        ({"small": HELD}, ["confirmed", "out of reach", "confirmed"]),
    ],
)
def test_every_verdict(figures, verdicts):
    assert [claim.verdict for claim in judge(made_up(**figures))] == verdicts


def test_the_plot_draws_a_series_up_to_its_end():
    figure = new_figure((11, 6))
    draw(made_up(), figure)
    assert len(figure.axes) == 6
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines[PAPER].get_xdata()) == [0, 600]
    assert list(lines[RETRAINED].get_xdata()) == [0, 600, 1000]
