"""``excise forget`` and ``excise audit`` by several processes: one file, written by one of them, or none."""

import json
import subprocess
import sys

import pytest
import shared_work
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from two_processes import free_port

from excise.cli import cli

pytestmark = pytest.mark.slow
TASKS = """
import os
from toy_classifier import classifier
task = classifier
def broken():
    if os.environ.get("RANK") == "1":
        raise ValueError("no such file")
    return classifier()
def stream():
    from excise import Task
    made = classifier()
    return Task(made.model, made.loss, iter(made.train_set))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "project.py").write_text(TASKS)
    return tmp_path


def arguments(out, task="task"):
    return ["forget", "--task", f"project:{task}", "--ids", "3,8,21", "--method", "step", "--out", str(out)]


def test_forget_and_audit(both, folder, monkeypatch):
    monkeypatch.chdir(folder)
    report = ["--report", str(folder / "record.json")]
    (said, wrong), (silence, also_wrong) = both(shared_work.command, arguments("two.safetensors") + report, str(folder))
    assert (wrong, also_wrong) == (None, None)
    assert "forgot 3 samples" in said
    assert silence == ""
    assert CliRunner().invoke(cli, arguments("one.safetensors")).exit_code == 0
    one, two = load_file(folder / "one.safetensors"), load_file(folder / "two.safetensors")
    assert all(torch.equal(two[name], tensor) for name, tensor in one.items())
    assert json.loads((folder / "record.json").read_text())["ids"] == [3, 8, 21]
    found = both(
        shared_work.command, ["audit", "--task", "project:task", "--unlearned", "two.safetensors"], str(folder)
    )
    assert [error for _, error in found] == [None, None]
    assert "forgotten the 3 samples" in found[0][0]
    assert found[1][0] == ""


def test_what_fails_in_one_process_is_told_by_all_and_nothing_is_written(both, folder):
    found = both(shared_work.command, arguments("two.safetensors", "broken"), str(folder))
    assert "no such file" in found[0][1]
    assert found[0][1].startswith("ProcessError")
    assert found[1][1].startswith("InputError: project:broken failed (ValueError: no such file")
    assert not (folder / "two.safetensors").exists()


def test_data_without_a_length_is_refused_by_all_and_nothing_is_written(both, folder):
    for said, wrong in both(shared_work.command, arguments("two.safetensors", "stream"), str(folder)):
        assert "must be indexable and have a length" in wrong
        assert said == ""
    assert not (folder / "two.safetensors").exists()


def test_other_commands_are_for_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = CliRunner().invoke(cli, ["slices", "--task", "project:task"])
    assert "excise slices works in one process" in str(found.exception)


def test_torchrun(folder):
    command = [
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
        "-m",
        "excise",
        *arguments("out.safetensors"),
    ]
    environment = {
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin",
    }
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("forgot 3 samples") == 1  # by one of the two
    assert (folder / "out.safetensors").exists()
