"""The one list of metrics: what is in it is measured, printed, on the page and in the record."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, InputError, Task
from excise import audit as full_audit
from excise.evidence import metrics
from excise.report import html

FORGET = range(10)
audit = partial(full_audit, effort=Effort(relearn_steps=20, resamples=200, permutations=999))


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def data(count, seed):
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


@pytest.fixture(scope="module")
def task():
    return Task(network(0), nn.CrossEntropyLoss(reduction="none"), data(60, 1), data(50, 2))


@pytest.fixture(scope="module")
def found(task):
    return audit(task, task.model, network(1), FORGET, retrained=[network(2), network(3)])


@pytest.fixture
def lists(monkeypatch):
    """What a test adds goes with it."""
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    monkeypatch.setattr(metrics, "ATTACKS", dict(metrics.ATTACKS))


def test_every_metric_is_printed_on_the_page_and_in_the_record(found):
    text, page, record = str(found), html(found), found.as_dict()["metrics"]
    for row in metrics.rows_of(found):
        metric = row.metric
        label = (metric.label or metric.name).format(metric="accuracy")
        line = next(line for line in text.splitlines() if line.startswith(label))
        assert len(line.split()) > len(label.split())
        assert metric.title.format(metric="Accuracy") in page
        values = record[metric.name.format(metric="accuracy")]
        assert [len(values[name]) for name in ("original", "unlearned", "retrained")] == [1, 1, 2]
    assert record["loss, test"]["unlearned"] == [found.unlearned.test.loss]
    assert "few-shot probe" not in record  # single samples were forgotten


def test_the_attack_by_confidence_is_shown(found):
    assert f"{found.unlearned.attacks['confidence'].auc:.3f}" in str(found).partition("attack by confidence")[2]
    assert "Attack by confidence" in html(found)


@pytest.mark.usefixtures("lists")
def test_an_attack_of_ones_own_takes_one_function(task):
    @metrics.attack("first output", title="Attack by <output>", words="By one number.", needs="anything")
    def score(said):
        return said.outputs[:, 0]

    found = audit(task, task.model, network(1), FORGET)
    with torch.no_grad():
        inside, outside = (network(1)(one.tensors[0])[:, 0].numpy() for one in (task.train_set, task.test_set))
    same = np.isin(task.test_set.tensors[1], task.train_set.tensors[1][:10])
    scores = np.concatenate([inside[:10], outside[same]])
    truth = roc_auc_score([1] * 10 + [0] * int(same.sum()), scores)
    assert found.unlearned.attacks["first output"].auc == pytest.approx(truth)
    assert f"{truth:.3f}" in str(found).partition("attack by first output, AUC")[2].splitlines()[0]
    assert "Attack by &lt;output&gt;" in html(found)
    assert found.as_dict()["metrics"]["attack by first output, AUC"]["unlearned"] == [pytest.approx(truth)]
    names = [row.metric.name for row in metrics.rows_of(found)]
    assert names.index("attack by first output, AUC") < names.index("steps to learn again")  # among its like
    with pytest.raises(InputError, match="'attack by first output, AUC' is there already"):
        metrics.attack("first output", title="", words="")(score)


def test_attacks_can_be_chosen_and_that_by_loss_is_always_run(task):
    found = audit(task, task.model, network(1), FORGET, attacks=["entropy"])
    assert list(found.unlearned.attacks) == ["loss", "entropy"]
    assert list(audit(task, task.model, network(1), FORGET, attacks=[]).unlearned.attacks) == ["loss"]
    assert "modified entropy" not in str(found)
    with pytest.raises(InputError, match=r"attacks must be one of.*not 'entropi'\. Did you mean 'entropy'\?"):
        audit(task, task.model, network(1), FORGET, attacks=["entropi"])


def test_attacks_on_classes_are_refused_without_classes(task):
    numbers = [TensorDataset(one.tensors[0], torch.randn(len(one), 3)) for one in (task.train_set, task.test_set)]
    regression = Task(network(0), nn.MSELoss(reduction="none"), *numbers)
    assert list(audit(regression, network(0), network(1), FORGET).original.attacks) == ["loss"]
    with pytest.raises(InputError, match="attacks has 'entropy', which needs targets that are one class each"):
        audit(regression, network(0), network(1), FORGET, attacks=["entropy"])


def test_steps_that_were_not_enough_are_those_that_were_allowed(found):
    """Also where the unlearned model needed fewer."""
    quick = replace(found.unlearned, relearning=replace(found.unlearned.relearning, steps=3, losses=(1.0,) * 4))
    slow = [replace(one, relearning=replace(one.relearning, steps=None, losses=(1.0,) * 101)) for one in found.models]
    mixed = replace(found, unlearned=quick, retrained=tuple(slow[2:]))
    assert str(mixed).partition("steps to learn again")[2].split()[2:4] == [">", "100"]
    assert "&gt; 100" in html(mixed)
    steps = next(row for row in metrics.rows_of(mixed) if row.metric.kind == "steps")
    assert steps.values["retrained"] == [math.inf, math.inf]
