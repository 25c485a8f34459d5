"""A preview says what is there to forget and what to expect, by figures that are computed here once more, plainly."""

import copy
import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy_classifier import classifier

from excise import Task
from excise.errors import InputError
from excise.ledger import expectation
from excise.ledger.preview import LastRequest, preview
from excise.task.hashing import hash_of_model

LAST = LastRequest("predicted", 4, 1.25, (0.011, 0.25), "forgotten as if retrained")


@pytest.fixture(scope="module")
def task():
    return classifier()


def figures(model, x, y):
    """Loss and right answers of each sample."""
    with torch.no_grad():
        outputs = model(x)
    return nn.functional.cross_entropy(outputs, y, reduction="none").numpy(), (outputs.argmax(1) == y).double().numpy()


def labels_of(task):
    return task.train_set.tensors[1].tolist()


def test_samples_classes_and_figures_are_those_of_the_samples(task):
    found = preview(task, task.model, [9, 3, 21], gone=[3, 5])
    x, y = (tensor[[9, 21]] for tensor in task.train_set.tensors)
    losses, right = figures(task.model, x, y)
    assert (found.positions, found.already, found.left) == ((9, 21), (3,), 40 - 4)
    assert found.classes == {label: y.tolist().count(label) for label in sorted(set(y.tolist()))}
    assert found.whole_classes == ()
    assert found.now.loss == pytest.approx(losses.mean())
    assert found.now.accuracy == right.mean()


def test_held_out_samples_count_as_the_classes_are_mixed(task):
    labels = labels_of(task)
    asked = [i for i in range(40) if labels[i] == 2][:3] + [i for i in range(40) if labels[i] == 1][:1]
    found = preview(task, task.model, asked).expected
    x, y = task.test_set.tensors
    losses, right = figures(task.model, x, y)
    of = {label: (y == label).numpy() for label in (1, 2)}
    assert found.then.loss == pytest.approx((3 * losses[of[2]].mean() + losses[of[1]].mean()) / 4)
    assert found.then.accuracy == pytest.approx((3 * right[of[2]].mean() + right[of[1]].mean()) / 4)
    assert found.held_out == of[1].sum() + of[2].sum()
    assert found.samples == 4
    mine, _ = figures(task.model, *(tensor[asked] for tensor in task.train_set.tensors))
    assert found.now.loss == pytest.approx(mine.mean())


def test_a_whole_class_is_named_and_left_out_of_what_to_expect(task):
    labels = labels_of(task)
    members = [i for i in range(40) if labels[i] == 2]
    other = labels.index(0)
    found = preview(task, task.model, [*members[1:], other], gone=members[:1])
    assert found.whole_classes == (2,)
    assert found.expected.samples == 1
    mine, _ = figures(task.model, *(tensor[[other]] for tensor in task.train_set.tensors))
    assert found.expected.now.loss == pytest.approx(mine[0])
    losses, _ = figures(task.model, *task.test_set.tensors)
    assert found.expected.then.loss == pytest.approx(losses[(task.test_set.tensors[1] == 0).numpy()].mean())
    assert "no sample would be left of class 2" in found.summary()
    change = found.expected.then.loss - mine[0]
    assert f"expected change of 1 sample: loss {change:+.4f}, accuracy" in found.summary()
    alone = preview(task, task.model, members)
    assert alone.expected is None
    assert "unknown, since no held-out sample is of a class that stays" in alone.summary()


def test_the_summary_says_it_all(task):
    found = preview(task, task.model, [3, 9], last=LAST)
    lines = found.summary().splitlines()
    labels = labels_of(task)
    assert lines[0] == "to forget: 2 samples, at 3, 9"
    assert lines[1].startswith(f"of class {min(labels[3], labels[9])} (")
    assert lines[2] == "retained: 38 samples"
    assert lines[3] == f"as the model is: loss {found.now.loss:.4f}, accuracy {found.now.accuracy:.1%}"
    assert lines[4].startswith(f"{found.expected.held_out} held-out samples of the same classes: loss")
    change = found.expected.then.loss - found.expected.now.loss
    points = 100 * (found.expected.then.accuracy - found.expected.now.accuracy)
    assert lines[5] == f"expected change: loss {change:+.4f}, accuracy {points:+.1f} points"
    assert lines[6] == (
        "the last request, of 4 samples by predicted, took 1.25 s: loss 0.0110 before, 0.2500 after; verdict: "
        "forgotten as if retrained"
    )
    assert len(lines) == 7
    assert preview(task, task.model, [3]).summary().endswith("unknown, since there was no request before")


def test_long_lists_are_shortened(task):
    summary = preview(task, task.model, list(range(30))).summary()
    assert summary.startswith("to forget: 30 samples, at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17")
    assert ", 19 and 10 more" in summary


def test_the_record_is_plain(task):
    found = preview(task, task.model, [3, 9], gone=[7], last=LAST)
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["positions"] == [3, 9]
    assert record["expected"]["then"]["loss"] == found.expected.then.loss
    assert record["last"]["forget_loss"] == [0.011, 0.25]
    spoilt = copy.deepcopy(task.model)
    nn.init.constant_(spoilt[2].bias, math.inf)
    assert preview(task, spoilt, [3]).as_dict()["now"]["loss"] is None


def test_nobody_and_everybody(task):
    nobody = preview(task, task.model, [5], gone=[5, 6])
    assert (nobody.positions, nobody.now, nobody.expected, nobody.left) == ((), None, None, 38)
    assert nobody.summary().startswith("to forget: 0 samples\nforgotten already: 1 sample, at 5\nretained: 38 samples")
    assert preview(task, task.model, []).left == 40
    everybody = preview(task, task.model, range(2, 40), gone=[0, 1])
    assert everybody.left == 0
    assert "nothing would be left: such a request is refused" in everybody.summary()
    with pytest.raises(InputError, match="ids must be from 0 to 39"):
        preview(task, task.model, [40])


def test_numbers_to_predict_have_losses_and_no_classes():
    x = torch.arange(6.0)[:, None]
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    task = Task(model, nn.MSELoss(), TensorDataset(x, x), TensorDataset(x[:2] + 10, x[:2] + 10))
    found = preview(task, model, [1, 3])
    assert found.classes == {}
    assert (found.now.loss, found.now.accuracy) == ((1 + 9) / 2, None)
    assert (found.expected.then.loss, found.expected.held_out) == ((100 + 121) / 2, 2)
    assert "2 held-out samples: loss 110.5000\nexpected change: loss +105.5000" in found.summary()


def test_one_output_for_two_classes():
    x = torch.tensor([[-1.0], [1.0], [2.0], [-3.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.9]])
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
    task = Task(model, nn.BCEWithLogitsLoss(), TensorDataset(x, y), TensorDataset(x, y))
    found = preview(task, model, [1, 3])
    assert found.classes == {1: 2}
    assert found.now.accuracy == 0.5
    assert found.expected.then.accuracy == pytest.approx(2 / 3)
    assert preview(task, model, [0]).whole_classes == (0,)


def test_samples_without_a_label_count_for_no_class():
    x, y = torch.eye(3), torch.tensor([0, -100, 1])
    model = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(model.weight)
    task = Task(model, nn.CrossEntropyLoss(), TensorDataset(x, y), TensorDataset(x, torch.tensor([0, 0, -100])))
    found = preview(task, model, [0, 1])
    assert found.classes == {0: 1}
    assert found.now.accuracy == 1.0
    assert found.whole_classes == (0,)


def test_few_of_many_held_out_samples_are_looked_at_of_each_class(monkeypatch):
    monkeypatch.setattr(expectation, "MOST_HELD_OUT", 20)
    monkeypatch.setattr(expectation, "LEAST_OF_CLASS", 5)
    y = torch.tensor([0] * 100 + [1] * 30 + [2] * 3)
    data = TensorDataset(torch.zeros(len(y), 1), y)
    task = Task(nn.Linear(1, 3), nn.CrossEntropyLoss(), data, data)
    assert preview(task, task.model, [0, 100, 130]).expected.held_out == 6 + 6 + 3
    half, many = (TensorDataset(*[torch.zeros(count, 1)] * 2) for count in (50, 90))
    numbers = Task(nn.Linear(1, 1), nn.MSELoss(), half, many)
    assert preview(numbers, numbers.model, [0]).expected.held_out == 20


def test_nothing_is_changed(task):
    before, mode = hash_of_model(task.model), task.model.training
    state = torch.get_rng_state()
    preview(task, task.model.train(), [1, 2])
    assert hash_of_model(task.model) == before
    assert task.model.training
    task.model.train(mode)
    assert torch.equal(torch.get_rng_state(), state)
