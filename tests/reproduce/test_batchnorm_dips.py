"""The batch normalisation experiment: its training loop, its norms, the depth of a dip, and its verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.batchnorm import claims, networks
from excise.reproduce.studies.batchnorm import measure as dips
from excise.reproduce.studies.batchnorm.measure import (
    ACCURACY,
    EVEN,
    JOINED,
    KEPT,
    LITERAL,
    NORM,
    OURS,
    QUIET,
    Settings,
)
from excise.reproduce.studies.batchnorm.plot import draw
from excise.task import Task

TINY = Settings(network="small", samples=10, batch_size=4, epochs=2, learning_rate=0.1, weight_decay=0.01)


def images(count=10, side=16):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 3, side, side, generator=generator)
    return TensorDataset(inputs, torch.arange(count) % 10)


def task_of(data):
    return Task(networks.small_network(1, width=4), dips.LOSS, data, weight_decay=0.01)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second, part=""):
    names = [name for name in first if part in name]
    return all(torch.equal(first[name], second[name]) for name in names)


# ---- training


@pytest.mark.parametrize(("count", "equal"), [(8, True), (10, True), (9, False)])
def test_the_plain_loop_is_fit_but_for_a_lone_sample(count, equal):
    task, ids = task_of(images()), torch.arange(count)
    plain = dips.plain_fit(task, ids, dips.plain_sizes(count, 4), TINY, seed=5)
    assert same(state(plain), state(dips.our_fit(task, ids, TINY, seed=5))) is equal


def test_statistics_only_moves_no_weight():
    task, ids, once = task_of(images()), torch.arange(5), replace(TINY, epochs=1)
    skipped = state(dips.plain_fit(task, ids, [4], once, seed=5))
    without_step = state(dips.plain_fit(task, ids, [4, 1], once, seed=5, lone_steps=False))
    with_step = state(dips.plain_fit(task, ids, [4, 1], once, seed=5))
    assert same(skipped, without_step, "weight")
    assert not same(skipped, with_step, "weight")
    assert not same(skipped, without_step, "running_mean")


def test_the_lone_batch_can_come_first():
    sizes = []

    def loss(outputs, targets):
        sizes.append(len(targets))
        return dips.LOSS(outputs, targets)

    task = replace(task_of(images()), loss=loss)
    dips.plain_fit(task, torch.arange(9), [4, 4, 1], replace(TINY, epochs=1), seed=0, lone_first=True)
    assert sizes == [1, 4, 4]


@pytest.mark.parametrize("count", [1, 4, 9, 130, 961])
def test_even_batches_cover_all_and_differ_by_one(count):
    sizes = dips.even_sizes(count, 64)
    assert sum(sizes) == count
    assert max(sizes) <= 64
    assert max(sizes) - min(sizes) <= 1


def test_one_pixel_is_refused_and_the_small_network_is_not():
    assert "more than 1 value" in networks.refusal()
    networks.small_network(0, width=4).train()(torch.zeros(1, 3, 32, 32))


# ---- measuring


def test_counts_with_one_left_over():
    settings = Settings(samples=1000, removals=111)
    assert dips.dips(settings) == [39, 103]  # 961 = 15 · 64 + 1, 897 = 14 · 64 + 1


def test_norms_by_hand():
    # one weight w = 0, loss (w - y)² / 2: the gradients are -y
    data = TensorDataset(torch.ones(5, 1), torch.tensor([1.0, 2.0, 3.0, 4.0, -30.0]))
    task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    nn.init.zeros_(task.model.weight)
    by_batch, true = dips.gradient_norms(task, task.model, torch.arange(5), [4, 1])
    assert by_batch == pytest.approx((2.5 + 30) / 2)
    assert true == pytest.approx(abs(10 - 30) / 5)


def test_momentum_of_statistics_is_changed_in_a_copy():
    model = networks.small_network(0, width=4)
    assert {m.momentum for m in dips.with_momentum(model, 0.5).modules() if isinstance(m, nn.BatchNorm2d)} == {0.5}
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


# ---- verdicts


CAUSES = (
    "kept",
    "kept, statistics taken anew",
    "kept, statistics only, no step",
    "kept, but first in the epoch",
    "kept, statistics of momentum 0.5",
    "skipped",
)


def figures(*, one=0.03, two=0.0, even=0.0, spike=1.0, skipped=0.0, anew=0.03, no_step=0.0):
    """Two runs around one dip at 39 removals."""
    removed, shape = [0, 32, 36, 38, 39, 40, 41, 47], (2, 8)
    wobble = np.array([[0.001], [-0.001]])

    def curve(at_one=0.0, at_two=0.0):
        values = np.full(shape, 0.4) + wobble
        values[:, 4] -= at_one * np.array([0.9, 1.1])
        values[:, 3] -= at_two
        return values.tolist()

    def norms(factor):
        values = np.full(shape, 2.0)
        values[:, 4] *= factor
        return values.tolist()

    accuracies = {KEPT: curve(one, two), JOINED: curve(0, two), EVEN: curve(even), OURS: curve(), QUIET: curve()}
    depths = dict.fromkeys(CAUSES, one) | {
        "kept, statistics taken anew": anew,
        "kept, statistics only, no step": no_step,
        "skipped": skipped,
    }
    return {
        "removed": removed,
        "dips": [39],
        ACCURACY: accuracies | {LITERAL: np.full(shape, 0.1).tolist()},
        NORM: {series: norms(spike if series == KEPT else 1.0) for series in (*accuracies, LITERAL)},
        "true norm": {series: norms(1.0) for series in (KEPT, JOINED, EVEN)},
        "causes": {name: [[0.95 * depth], [1.05 * depth]] for name, depth in depths.items()},
        "refusal": "Expected more than 1 value per channel when training",
        "sigma": 15.0,
        "batches": 16,
    }


def test_depth_by_hand():
    found = claims.depth([[0.01, 0.03], [0.02, None]])
    assert found.mean == pytest.approx(0.02)
    assert found.error == pytest.approx(0.01 / 3**0.5)
    assert found.is_dip


@pytest.mark.parametrize("values", [[0.1], [-0.01, -0.011], [0.004, 0.0041], [0.08, -0.04, 0.02], [None, None]])
def test_what_is_no_dip(values):
    """One value alone, a rise, less than half a point, chance, and nothing at all."""
    assert not claims.depth(values).is_dip


def test_differences_are_from_the_counts_after_the_dip():
    found = claims.differences(figures(one=0.03), ACCURACY, KEPT)
    assert found == pytest.approx(np.array([[0.027], [0.033]]))
    spikes = claims.differences(figures(spike=1.5), NORM, KEPT, relative=True)
    assert spikes == pytest.approx(np.array([[-0.5], [-0.5]]))


YES, NO = "confirmed", "not confirmed"


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ({"spike": 1.5}, [YES, YES, YES, NO, YES]),
        ({"two": 0.03}, [YES, NO, NO, NO, YES]),
        ({"one": 0.0, "anew": 0.0}, [NO, YES, NO, NO, NO]),
        ({"even": 0.03, "skipped": 0.02}, [YES, YES, NO, YES, NO]),
    ],
)
def test_verdicts(given, verdicts):
    assert [claim.verdict for claim in claims.judge(figures(**given))] == verdicts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "by the step on a single image"),
        ({"anew": 0.0, "no_step": 0.03}, "by what it leaves in the running statistics:"),
        ({"anew": 0.03, "no_step": 0.03}, "no single part"),
        ({"one": 0.0}, "no dip"),
    ],
)
def test_the_cause_is_named_by_what_takes_the_dip_away(given, words):
    assert words in claims.judge(figures(**given))[0].why


@pytest.mark.slow
def test_a_network_that_refuses_leaves_gaps_that_can_be_drawn():
    measured = figures()
    for run in measured[ACCURACY][KEPT]:
        run[4] = None
    assert claims.judge(measured)[0].verdict == NO
    figure = new_figure((12, 4))
    draw(measured, figure)
    assert len(figure.axes) == 3
