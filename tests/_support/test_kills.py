"""kill -9 at random instants while files are written: none is half, none is lost, and nothing is left lying about.

``make kills`` does this 200 times, ``make test`` 20 times.
"""

import os
import random

import pytest
from outputs import OUTPUTS, WIDTH

from excise.task.weights import load_weights, save_weights

KILLS = int(os.environ.get("EXCISE_KILLS", "20"))
KINDS = (*OUTPUTS, "--out is --model, .safetensors", "--out is --model, .pt")
KILLED = -9
FACTORY = f"""
import torch
from torch import nn
import excise

def task():
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("ballast", torch.ones({WIDTH}, {WIDTH}))  # takes its time to write
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return excise.Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-2)
"""


def share_of(kind):
    """How many of the kills fall to a kind of file."""
    place = KINDS.index(kind)
    return KILLS // len(KINDS) + (place < KILLS % len(KINDS))


def drafts(folder):
    return [path for path in folder.rglob(".excise-draft-*") if path.is_dir()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path, nursery, kind):
    output, rng = OUTPUTS[kind], random.Random(kind)
    whole = nursery.write(kind, tmp_path, 0, count=1)
    assert whole["code"] == 0, whole["said"]
    version = output.check(tmp_path)
    for _ in range(share_of(kind)):
        first = 1 if version is None else version + 1
        done = nursery.write(kind, tmp_path, first, after=0.01 + 3 * whole["seconds"] * rng.random())
        assert done["code"] == KILLED, done["said"]
        found = output.check(tmp_path)
        assert found is None or found >= version
        version = found
    assert nursery.write(kind, tmp_path, 1 if version is None else version + 1, count=1)["code"] == 0
    assert drafts(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_kill_of_the_command_never_costs_the_only_copy_of_a_model(tmp_path, nursery, ending):
    (tmp_path / "killed_factory.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    model, rng = scope["task"]().model, random.Random(ending)
    file = tmp_path / f"model{ending}"
    save_weights(model, file)

    def forget(number, **order):
        words = ["forget", "--task", "killed_factory:task", "--ids", number, "--guard", "none", "--model", file]
        return nursery.command(*words, "--out", file, folder=tmp_path, **order)

    whole, gone = forget(0), 1
    assert whole["code"] == 0, whole["said"]
    for _ in range(share_of(f"--out is --model, {ending}")):
        done = forget(gone, after=whole["seconds"] * (0.5 + 0.7 * rng.random()))
        assert done["code"] in (KILLED, 0), done["said"]
        record = load_weights(model, file)
        assert (model.ballast == 1).all()
        if ending == ".safetensors":
            assert len(record["forgotten"]) in (gone, gone + 1)
            gone = len(record["forgotten"])
        elif done["code"] == 0:
            gone += 1
    assert forget(gone)["code"] == 0
    assert drafts(tmp_path) == []


@pytest.mark.slow
def test_kills_do_fall_into_the_writing(tmp_path, nursery):
    """Or else the tests above would show nothing."""
    rng, left = random.Random(0), 0
    for _ in range(10):
        nursery.write("weights .pt", tmp_path, 0, after=0.02 + 0.1 * rng.random())
        left += len(drafts(tmp_path))
    assert left > 0
