"""The experiment with many networks: its noise, its ranking of networks, and its verdicts."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError
from excise.privacy.gaussian import paper_sigma
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.cifar_models import measure as models
from excise.reproduce.studies.cifar_models.claims import judge, ranking
from excise.reproduce.studies.cifar_models.experiment import HERE
from excise.reproduce.studies.cifar_models.measure import ACCURACY, LITERAL, NORM, OURS, Settings
from excise.reproduce.studies.cifar_models.plot import draw
from excise.task import Task

YES, NO, UNKNOWN = "confirmed", "not confirmed", "out of reach"


def test_the_noise_is_the_papers_and_adds_up_to_the_same():
    paper = paper_sigma(samples=50_000, weight_decay=0.01, epsilon=0.1, delta=0.01)
    assert models.scaled_sigma(Settings()) == pytest.approx(paper)
    assert HERE.removals * models.scaled_sigma(HERE) ** 2 == pytest.approx(1000 * paper**2)


def test_the_share_removed_is_the_papers():
    assert HERE.removals / HERE.samples == Settings().removals / Settings().samples


@pytest.mark.parametrize("name", [name for name in HERE.networks if name not in models.WEIGHTS])
def test_networks_give_ten_logits(name, tmp_path):
    network = models.network(name, HERE, seed=0, data_dir=tmp_path).eval()
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(InputError, match="resnet20-12fca82f"):
        models.network("ResNet-20", HERE, seed=0, data_dir=tmp_path)


def test_learning_rates_are_the_papers():
    rates = {name: models.training_of(name, Settings())["lr"] for name in Settings().networks}
    assert {name for name, rate in rates.items() if rate == 0.01} == {"VGG-11", "VGG-11-BN"}
    assert rates["DenseNet"] == 0.1
    assert rates["ResNet-20"] == models.PRETRAINED_RATE
    assert models.training_of("ResNet-20", HERE)["epochs"] == 2


def test_accuracy_is_of_the_named_samples():
    inputs = torch.eye(3)
    task = Task(nn.Identity(), models.LOSS, TensorDataset(inputs, torch.tensor([0, 1, 0])))
    assert models.accuracy(task, task.model, [0, 1]) == 1
    assert models.accuracy(task, task.model, [1, 2]) == 0.5


def figures(last, *, base=(0.4, 0.5, 0.6, 0.8, 1.0), norm=0.5):
    """Networks whose accuracy falls to ``last`` (a share of the base) along a straight line; ours stays."""
    removed = [0, 4, 8, 12, 16, 20]
    names = [f"network {number}" for number in range(len(base))]
    curves = {
        name: {
            LITERAL: [np.linspace(start, start * share, 6).tolist()] * 2,
            OURS: [[start] * 6] * 2,
        }
        for name, start, share in zip(names, base, last, strict=True)
    }
    return {
        "removed": removed,
        "samples": 1000,
        "sigma": 0.04,
        "sigma unscaled": 15.0,
        "parameters": {name: 1000 * (number + 1) for number, name in enumerate(names)},
        ACCURACY: curves,
        NORM: {name: {series: [[norm] * 6] * 2 for series in (LITERAL, OURS)} for name in names},
    }


def test_ranking_by_hand():
    found = ranking(figures((0.5, 0.6, 0.7, 0.9, 1.0)), LITERAL)
    # falls of 0.04, 0.04, 0.036, 0.016 and 0 from one measurement to the next; 0.05 may be lost
    assert list(found.supported.values()) == ["4", "4", "4", "12", "> 20"]
    assert found.ended == 4
    assert found.drop_correlation == pytest.approx(-0.975, abs=0.001)  # ranks 4.5, 4.5, 3, 2, 1 against 1 to 5
    assert found.correlation == pytest.approx(0.894, abs=0.001)  # ranks 2, 2, 2, 4, 5


def test_what_does_not_vary_has_no_correlation():
    found = ranking(figures((0.5, 0.6, 0.7, 0.9, 1.0)), OURS)
    assert math.isnan(found.correlation)
    assert math.isnan(found.drop_correlation)


@pytest.mark.parametrize(
    ("last", "norm", "verdicts"),
    [
        ((0.5, 0.6, 0.7, 0.9, 1.0), 0.5, [NO, YES, YES]),
        ((1.0, 1.0, 1.0, 1.0, 1.0), 2.0, [YES, UNKNOWN, NO]),
        ((1.0, 0.9, 0.7, 0.6, 0.5), 2.0, [NO, NO, NO]),
    ],
)
def test_verdicts(last, norm, verdicts):
    assert [claim.verdict for claim in judge(figures(last, norm=norm))] == verdicts


def test_it_draws_two_rows_of_two_panels():
    figure = new_figure((11, 7))
    draw(figures((0.5, 0.6, 0.7, 0.9, 1.0)), figure)
    assert [axes.get_ylabel() for axes in figure.axes] == [ACCURACY, NORM] * 2
    assert all(len(axes.lines) == 5 for axes in figure.axes)
