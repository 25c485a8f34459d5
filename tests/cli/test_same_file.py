"""``--out`` equal to ``--model``: the only copy of a model is replaced whole, or not at all."""

import os

import pytest
import torch
from torch import nn

from excise.errors import InputError
from excise.task.weights import load_weights, save_weights


def forget(run, file, *more, ids="3"):
    return run("forget", "--task", "forget_factory:tested", "--ids", ids, "--model", file, "--out", file, *more)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
@pytest.mark.parametrize("by_a_link", [False, True])
def test_a_model_is_replaced_by_what_is_left_of_it(run, make_task, tmp_path, ending, by_a_link):
    file = tmp_path / f"model{ending}"
    task = make_task("tested")
    save_weights(task.model, file)
    file.chmod(0o640)
    named = file
    if by_a_link:
        named = tmp_path / f"link{ending}"
        named.symlink_to(file)
    elsewhere = run(
        "forget", "--task", "forget_factory:tested", "--ids", "3", "--model", file, "--out", f"other{ending}"
    )
    assert elsewhere.exit_code == 0, elsewhere.output
    done = forget(run, named)
    assert done.exit_code == 0, done.output
    ours, other = make_task("tested").model, make_task("tested").model
    load_weights(ours, file)
    load_weights(other, tmp_path / f"other{ending}")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours.parameters(), task.model.parameters(), strict=True))
    assert file.stat().st_mode & 0o777 == 0o640
    assert named.is_symlink() == by_a_link
    assert not list(tmp_path.glob(".*"))


def test_one_request_after_the_other_on_the_same_file(run, make_task, tmp_path):
    file = tmp_path / "model.safetensors"
    save_weights(make_task("tested").model, file)
    for number in range(3):
        assert forget(run, file, "--method", "step", ids=str(number)).exit_code == 0
    assert load_weights(make_task("tested").model, file)["forgotten"] == [0, 1, 2]


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_request_that_fails_leaves_the_model(run, make_task, tmp_path, monkeypatch, ending):
    file = tmp_path / f"model{ending}"
    save_weights(make_task("tested").model, file)
    before = file.read_bytes()
    assert isinstance(forget(run, file, ids="80").exception, InputError)
    assert file.read_bytes() == before

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in str(forget(run, file).exception)
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_weights_of_another_model_are_not_written_over(run, tmp_path):
    file = tmp_path / "model.pt"
    save_weights(nn.Linear(9, 9), file)
    before = file.read_bytes()
    assert "lacks" in str(forget(run, file).exception)
    assert file.read_bytes() == before
