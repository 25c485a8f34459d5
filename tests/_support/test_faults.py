"""A full disk, a folder that can't be written, too little memory, Ctrl-C: a clear line, and the old file whole."""

import contextlib
import random
import subprocess

import pytest
from outputs import OUTPUTS

from excise.task.weights import save_weights

MEGABYTE = 2**20
FACTORY = """
import time
import torch
from torch import nn
import numpy as np
import excise

def task():
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("ballast", torch.ones(300, 300))
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return excise.Task(model, nn.CrossEntropyLoss(), data, weight_decay=1e-2)

def hungry(forward):
    import dataclasses
    return dataclasses.replace(task(), forward=lambda model, batch: (forward(), model(batch[0]), batch[1])[1:])

def hungry_torch():
    return hungry(lambda: torch.zeros(2**33))

def hungry_numpy():
    return hungry(lambda: np.ones(2**33))

def hungry_python():
    return hungry(lambda: bytearray(2**34))

def broken():
    def forward():
        raise RuntimeError("of another kind")
    return hungry(forward)

def lasting():
    return hungry(lambda: time.sleep(0.05))
"""


@pytest.fixture
def model(tmp_path):
    """A file of weights, and what is in it."""
    (tmp_path / "faulty_factory.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    file = tmp_path / "model.pt"
    save_weights(scope["task"]().model, file)
    return file, file.read_bytes()


def forget(nursery, task, file, out=None, **order):
    words = ["forget", "--task", f"faulty_factory:{task}", "--ids", "3", "--guard", "none", "--model", file]
    return nursery.command(*words, "--out", out or file, folder=file.parent, **order)


def said_at_the_end(done):
    """The last line; warnings may come before."""
    lines = [line for line in done["said"].splitlines() if line and "warning" not in line]
    assert "Traceback" not in done["said"]
    assert len(lines) == 1
    return lines[0]


def hidden(folder):
    return [path.name for path in folder.rglob(".*")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OUTPUTS)
def test_no_file_is_half_where_the_disk_takes_no_more(tmp_path, nursery, kind):
    output = OUTPUTS[kind]
    assert nursery.write(kind, tmp_path, 0, count=1)["code"] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = nursery.write(kind, tmp_path, 1, count=1, limits={"RLIMIT_FSIZE": 5000})
    assert "could not be written" in done["said"].splitlines()[0]
    assert "File too large" in done["said"].splitlines()[0]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert output.check(tmp_path) in (None, 0)
    assert hidden(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_a_command_that_fills_the_disk_says_so(nursery, model, ending):
    file, before = model
    out = file.with_name(f"out{ending}")
    out.write_bytes(b"old")
    done = forget(nursery, "task", file, out, limits={"RLIMIT_FSIZE": 50_000})
    assert done["code"] == 1, done["said"]
    assert "could not be written" in said_at_the_end(done)
    assert "File too large" in said_at_the_end(done)
    assert out.read_bytes() == b"old"
    assert file.read_bytes() == before
    assert hidden(file.parent) == []


@contextlib.contextmanager
def mounted(folder, *options):
    """A disk of its own in the folder; skips where we may not."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("may not mount; the limit of the tests above stands for it")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_and_one_that_is_read_only(tmp_path, nursery):
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=4m", "excise"):  # the old file fits, and no other
        assert nursery.write("weights .pt", disk, 0, count=1)["code"] == 0
        for kind in ("weights .pt", "record"):
            done = nursery.write(kind, disk, 1, count=1)
            assert "could not be written" in done["said"].splitlines()[0]
            assert "No space left on device" in done["said"].splitlines()[0]
            assert OUTPUTS["weights .pt"].check(disk) == 0
            assert [path.name for path in disk.iterdir()] == ["model.pt"]
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = nursery.write("weights .pt", disk, 1, count=1)
        assert "model.pt: could not be written (Read-only file system)" in done["said"].splitlines()[0]
        assert OUTPUTS["weights .pt"].check(disk) == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["hungry_torch", "hungry_numpy", "hungry_python"])
def test_too_little_memory_is_one_clear_line(nursery, model, task):
    file, before = model
    done = forget(nursery, task, file, limits={"RLIMIT_AS": 300 * MEGABYTE})
    assert done["code"] == 1
    assert said_at_the_end(done).startswith("excise: out of memory")
    assert file.read_bytes() == before
    assert hidden(file.parent) == []


@pytest.mark.slow
def test_another_error_is_not_taken_for_lack_of_memory(nursery, model):
    done = forget(nursery, "broken", model[0])
    assert done["code"] == 1
    assert "out of memory" not in done["said"]
    assert "of another kind" in done["said"]  # named as an error of the task's own


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_stops_at_once_and_leaves_the_old_file(nursery, model, seed):
    file, before = model
    done = forget(nursery, "lasting", file, after=0.1 + 0.1 * random.Random(seed).random(), signal="SIGINT")
    assert done["code"] == 130
    assert said_at_the_end(done) == "excise: stopped; files are as they were, or complete"
    assert file.read_bytes() == before
    assert hidden(file.parent) == []


@pytest.mark.slow
def test_ctrl_c_while_writing_leaves_the_old_file_or_the_new_one(tmp_path, nursery):
    rng, version = random.Random(0), 0
    nursery.write("weights .pt", tmp_path, 0, count=1)
    for _ in range(5):
        done = nursery.write("weights .pt", tmp_path, version, after=0.05 + 0.1 * rng.random(), signal="SIGINT")
        assert done["said"].startswith("KeyboardInterrupt")
        version = OUTPUTS["weights .pt"].check(tmp_path)
        assert hidden(tmp_path) == []
