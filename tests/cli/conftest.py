"""A module of tasks that the command line can be pointed at, as a user's."""

import sys

import pytest
from click.testing import CliRunner

from excise.cli import cli, main

FACTORY = """
import dataclasses
import torch
from torch import nn
import excise

def task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
    data = torch.utils.data.TensorDataset(x, y)
    return excise.Task(model, nn.CrossEntropyLoss(reduction="none"), data, weight_decay=1e-2)

def tested():
    made = task()
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    return dataclasses.replace(made, test_set=torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()))

def named():
    return dataclasses.replace(tested(), keys=[f"c{place // 4}" for place in range(80)])

def reordered():
    made = tested()
    order = torch.arange(80).flip(0)
    data = torch.utils.data.TensorDataset(*(part[order] for part in made.train_set.tensors))
    return dataclasses.replace(made, train_set=data)

def shortened():
    made = tested()
    data = torch.utils.data.TensorDataset(*(part[:79] for part in made.train_set.tensors))
    return dataclasses.replace(made, train_set=data)

def exchanged():
    made = tested()
    inputs, labels = made.train_set.tensors
    return dataclasses.replace(made, train_set=torch.utils.data.TensorDataset(inputs + 1, labels))

def wider():
    return dataclasses.replace(tested(), model=nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))

def trained():
    made = named()
    inputs, labels = made.train_set.tensors
    wrong = labels.clone()
    wrong[:10] = 1 - wrong[:10]
    made = dataclasses.replace(made, train_set=torch.utils.data.TensorDataset(inputs, wrong))
    return made.with_model(excise.fit(made, epochs=60, lr=0.2, seed=0).model)

def needs_more(name):
    return name

def validation():
    made = tested()
    inputs, labels = made.test_set.tensors
    inputs = inputs[:30].clone()
    inputs[7] = made.train_set.tensors[0][3]
    return torch.utils.data.TensorDataset(inputs, labels[:30])

def validation_with_keys():
    data = validation()
    return {"validation": (data, ["c3" if place == 2 else "v" for place in range(len(data))])}

def texts():
    torch.manual_seed(0)
    words = torch.randint(0, 20, (60, 5))
    model = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(15, 2))
    data = torch.utils.data.TensorDataset(words, (words[:, 0] > 9).long())
    return excise.Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-2)

def other_words():
    return excise.TokenReplacement(vocabulary=(0, 20))

def nothing():
    return None
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "forget_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def make_task(run, tmp_path):  # noqa: ARG001 - the module is written by it
    """A task of that module, in this process."""
    scope = {}
    exec((tmp_path / "forget_factory.py").read_text(), scope)
    return lambda name: scope[name]()


@pytest.fixture
def run_main(monkeypatch, capsys):
    """The whole command, errors included: its code, and what it prints."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["excise", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return call
