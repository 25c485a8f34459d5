"""Nothing forgotten is an error of its own, and every outcome says what it did to forgotten, retained and others."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Descent, Drift, Forgotten, Guard, NothingForgotten, Step, Task, Unlearner, fit
from excise.cli import main
from excise.errors import ExciseError
from excise.unlearning.performance import performance


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(160, 4, generator=generator)
    labels = (inputs[:, 0] > 0).long()
    labels[:6] = 1 - labels[:6]  # known by heart
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    made = Task(
        model,
        nn.CrossEntropyLoss(),
        TensorDataset(inputs[:120], labels[:120]),
        TensorDataset(inputs[120:], labels[120:]),
        weight_decay=1e-3,
    )
    return made.with_model(fit(made, epochs=80, lr=0.2, seed=0).model)


@pytest.mark.parametrize("method", [Step(), Drift()], ids=["step", "drift"])
def test_what_the_guard_refuses_is_an_error_and_nothing_counts_as_forgotten(task, method, monkeypatch):
    unlearner = Unlearner(task, method).prepare()
    harm = unlearner._sample_losses + 10
    monkeypatch.setattr("excise.unlearning.guard.GuardSample.losses", lambda *_: harm)
    before = {name: weight.clone() for name, weight in task.model.state_dict().items()}
    with pytest.raises(NothingForgotten, match=r"nothing is forgotten.*Guard\(factor=3, points=3\) \(--guard 3\)"):
        unlearner.forget([0, 1, 2])
    assert issubclass(NothingForgotten, ExciseError)
    assert unlearner.forgotten == ()
    assert unlearner.model is task.model
    assert all(torch.equal(before[name], weight) for name, weight in task.model.state_dict().items())


def test_a_method_that_changes_nothing_is_an_error_too(task, monkeypatch):
    monkeypatch.setattr("excise.unlearning.descent._descend", lambda *_: 0.0)
    with pytest.raises(NothingForgotten, match=r"descent changed none of the model's weights"):
        Unlearner(task, Descent(steps=1)).forget([0, 1])


def test_weights_that_are_no_numbers_are_thrown_away(task):
    unlearner = Unlearner(task, Drift(lr=1e30), guard=None)
    with pytest.raises(NothingForgotten, match="not finite"):
        unlearner.forget([0, 1])
    assert unlearner.forgotten == ()


def test_every_outcome_tells_loss_and_accuracy_before_and_after(task, tmp_path):
    done = Unlearner(task, Drift()).forget(range(6))
    lines = done.summary().splitlines()
    assert sum("before" in line and "accuracy" in line for line in lines) == 3
    assert done.forget_accuracy[1] < done.forget_accuracy[0]
    wanted = float(
        (task.model(task.train_set.tensors[0][:6]).argmax(1) == task.train_set.tensors[1][:6]).float().mean()
    )
    assert done.forget_accuracy[0] == pytest.approx(wanted)
    inputs, labels = task.test_set.tensors
    assert done.held_out_accuracy[1] == pytest.approx(float((done.model(inputs).argmax(1) == labels).float().mean()))
    assert done.held_out_loss[0] == pytest.approx(nn.functional.cross_entropy(task.model(inputs), labels).item())
    done.save(tmp_path / "out.safetensors")
    again = Forgotten.load(tmp_path / "out.safetensors", task)
    assert again.summary() == done.summary()


@pytest.mark.slow
def test_retained_accuracy_speaks_for_all_retained_samples(task):
    """The guard's samples are drawn with preference for hard ones, and weighted accordingly."""
    found = [
        Unlearner(task, Step("all"), guard=Guard(samples=40), seed=seed).forget([7]).retain_accuracy[0]
        for seed in range(6)
    ]
    everything = performance(task, task.model, range(120)).accuracy
    assert sum(found) / len(found) == pytest.approx(everything, abs=0.05)


def test_numbers_to_predict_have_no_accuracy():
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    task = Task(nn.Linear(3, 1), nn.MSELoss(), TensorDataset(inputs, inputs[:, :1]), weight_decay=1e-3)
    done = Unlearner(task.with_model(fit(task, epochs=40, lr=0.1, seed=0).model)).forget([3])
    assert done.forget_accuracy is None
    assert done.held_out_loss is None
    assert "accuracy" not in done.summary()


def test_records_of_earlier_versions_are_read(task):
    done = Unlearner(task, Drift()).forget([0])
    record = done.as_dict()
    for name in ("held_out_loss", "forget_accuracy", "retain_accuracy", "held_out_accuracy"):
        del record[name]
    assert Forgotten.from_record(record, done.model).forget_accuracy is None


def test_samples_without_a_label_count_for_no_accuracy(task):
    labels = task.train_set.tensors[1].clone()
    labels[5] = -100
    partly = replace(task, train_set=TensorDataset(task.train_set.tensors[0], labels))
    assert performance(partly, task.model, [5]).accuracy is None
    assert performance(partly, task.model, [5, 9]).accuracy == performance(task, task.model, [9]).accuracy


FACTORY = """
import torch
from torch import nn
import excise

def task():
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    made = excise.Task(nn.Linear(4, 2), nn.CrossEntropyLoss(), torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()))
    return made.with_model(excise.fit(made, epochs=30, lr=0.2, seed=0).model)
"""


@pytest.mark.slow
def test_the_command_ends_with_a_code_of_its_own_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    options = ["--task", "factory:task", "--ids", "3,5", "--method", "drift", "--set", "lr=1e4"]
    command = ["excise", "forget", *options, "--out", "out.safetensors", "--report", "r.json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 3, said
    assert "nothing is forgotten" in said
    assert "--guard" in said
    assert "--method" in said
    assert not list(tmp_path.glob("out*"))
    assert not list(tmp_path.glob("r.*"))


def test_a_guard_whose_samples_are_all_forgotten_takes_others(task):
    """Their mean loss was not a number, and so no step was ever allowed."""
    unlearner = Unlearner(task, Step("all"), guard=Guard(factor=50, samples=2)).prepare()
    done = unlearner.forget(unlearner._sample.ids.tolist())
    assert done.retain_loss[0] == done.retain_loss[0]  # a number
    assert done.parameters_changed > 0
