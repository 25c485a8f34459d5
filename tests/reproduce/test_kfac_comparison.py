"""What the comparison with K-FAC is made of: its data, its figures, the pooled gap, and the verdicts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from excise.networks.small import mlp
from excise.reproduce.framework.plots import new_figure
from excise.reproduce.studies.kfac.claims import has_room, judge, pooled_gap
from excise.reproduce.studies.kfac.measure import (
    CASES,
    DRIFT,
    KFAC,
    LOSS,
    OURS,
    PAPER,
    RETRAINED,
    SMALL,
    Data,
    Settings,
    _figures,
    _forgotten,
    _of_retrained,
)
from excise.reproduce.studies.kfac.plot import draw
from excise.task import Task, objective


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    images, labels = torch.tensor(rng.random((60, 784), dtype=np.float32)), torch.tensor(rng.integers(10, size=60))
    return Data(TensorDataset(images[:40], labels[:40]), images[40:], labels[40:])


@pytest.fixture(scope="module")
def task(data):
    return Task(mlp(0, (784, 5, 10)).eval(), LOSS, data.train, weight_decay=0.01)


def test_the_hardest_samples_are_those_of_largest_loss(task):
    run = SimpleNamespace(settings=Settings(hardest=3, random=6), seed=0)
    losses = objective.losses_on(task, task.model, range(40)).numpy()
    assert _forgotten(run, task, CASES[2], 0) == np.argsort(-losses)[:3].tolist()
    first, again, other = (_forgotten(run, task, CASES[0], number) for number in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 6


def test_figures_of_a_model_that_nothing_was_done_to(data, task):
    retrained = [mlp(seed, (784, 5, 10)).eval() for seed in (1, 2)]
    figures = _figures(data, task, [3, 8], retrained, task.model)
    assert figures["weight_change"] == figures["changed_answers"] == 0
    assert figures["gap"][0] == figures["gap"][1]
    assert figures["forget_loss"] == pytest.approx(float(objective.losses_on(task, task.model, [3, 8]).mean()))
    right = (task.model(data.images).argmax(1) == data.labels).sum()
    assert figures["validation"] == pytest.approx(100 * int(right) / 20)


def test_retrained_models_are_at_the_floor(data, task):
    retrained = [mlp(seed, (784, 5, 10)).eval() for seed in (1, 2)]
    means = _of_retrained(data, task, [3, 8], retrained)
    assert means["gap"][0] == means["gap"][2]
    each = [_figures(data, task, [3, 8], retrained, model)["forget_loss"] for model in retrained]
    assert means["forget_loss"] == pytest.approx(sum(each) / 2)


def test_gaps_are_summed_before_they_are_divided():
    rows = [{"gap": [2.0, 5.0, 1.0]}, {"gap": [1.5, 1.6, 1.0]}]
    assert pooled_gap(rows).share == pytest.approx((3.5 - 2) / (6.6 - 2))
    assert has_room(pooled_gap(rows))
    assert not has_room(pooled_gap(rows[1:]))


def made_up(*, moved, kfac=0.2, paper=30.0, original=5.0):
    """Two runs of figures, as ``measure`` gives them; gaps as shares left."""

    def figures(change, share, scale):
        return [
            {
                "validation": 97.0 + change + 0.01 * run,
                "forget_loss": 1.0 + share,
                "forget_accuracy": 50.0,
                "changed_answers": 0.0,
                "weight_change": 0.01,
                "gap": [1.0 + share * (scale - 1.0), scale, 1.0],
            }
            for run in range(2)
        ]

    def case(scale):
        left = {"before": 1.0, KFAC: kfac, PAPER: paper, OURS: 0.3, DRIFT: 0.1, RETRAINED: 0.0}
        return {name: figures(moved.get(name, 0.0), share, scale) for name, share in left.items()}

    return {"cases": {one.name: case(1.0 if one.network == SMALL else original) for one in CASES}}


def verdicts(measured):
    return [claim.verdict for claim in judge(measured)]


def test_verdicts_follow_the_figures():
    yes, no, unknown = "confirmed", "not confirmed", "out of reach"
    assert verdicts(made_up(moved={PAPER: -20.0})) == [yes, no, no]
    assert verdicts(made_up(moved={KFAC: -0.2}, kfac=0.95, paper=0.4)) == [no, yes, yes]
    assert verdicts(made_up(moved={KFAC: -0.2}, kfac=0.8, paper=0.4)) == [no, no, yes]  # it does something
    assert verdicts(made_up(moved={PAPER: -2.0}, paper=0.4)) == [yes, no, no]  # it forgets, and does damage
    assert verdicts(made_up(moved={}, original=1.5)) == [yes, unknown, unknown]


def test_the_plot_shows_every_method_and_says_where_there_is_nothing_to_forget():
    figure = new_figure((11.0, 4.2))
    draw(made_up(moved={PAPER: -20.0}), figure)
    validation, loss, gap = figure.axes
    assert [text.get_text() for text in gap.texts] == ["nothing\nto forget"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        *(KFAC, PAPER, OURS, DRIFT, RETRAINED),
        "before",
    }
    means = [line.get_ydata()[0] for line in validation.get_lines() if line.get_marker() == "_"]
    assert min(means) == pytest.approx(-20.0)
    assert loss.get_yscale() == "log"
