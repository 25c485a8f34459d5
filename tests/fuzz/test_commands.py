"""Commands with options of every kind, in a folder of files of every kind: an error, or all that was asked for."""

import json
import os
import shutil

import pytest
import torch
from click.testing import CliRunner
from fuzz.harness import Tried, no_drafts
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from excise.cli import cli

FACTORY = """
import torch
from torch import nn
import excise

def task():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    data, test = (torch.utils.data.TensorDataset(part, (part[:, 0] > 0).long()) for part in (x[:24], x[24:]))
    return excise.Task(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, test, keys=[i // 4 for i in range(24)])

def broken():
    raise KeyError("x")
"""
NAMES = ["new", "taken", "text", "pipe", "folder", "nowhere/x", "", ".", "a" * 300, "\ud800", "x\x1b[31m", "linked"]
ENDINGS = [".pt", ".safetensors", ".json", ".html", ".csv", ".png", "", ".docx"]
FILES = st.tuples(st.sampled_from(NAMES), st.sampled_from(ENDINGS)).map("".join)
WORDS = st.one_of(
    st.sampled_from(["3", "3,5", "0", "99", "-1", "²", "", "nan", "class:1", "random:10%", "ids:3"]),
    st.text(max_size=6),
)
OPTIONS = {
    "--task": st.sampled_from(
        ["fuzz_tasks:task"] * 5 + ["fuzz_tasks:broken", "json:loads", ".x:y", "", "nowhere:x", ":"]
    ),
    "--ids": WORDS,
    "--ids-file": FILES,
    "--forget": WORDS,
    "--keys": WORDS,
    "--model": FILES,
    "--forgotten": FILES,
    "--method": st.sampled_from(["drift", "step", "drft", "", "fine-tune"]),
    "--set": st.sampled_from(
        ["epochs=1", "epochs=0", "epochs=1e9", "x", "=", "a.b=1", "epochs=[]", "lr=nan", "size=1e400"]
    ),
    "--guard": st.sampled_from(["none", "1.5", "0", "nan", "inf", "-1", "x"]),
    "--report": FILES,
    "--seed": st.one_of(st.integers(-1, 5).map(str), st.sampled_from([str(2**63), str(2**64), "x", "1.0"])),
    "--hash-key": st.sampled_from(["key", "text", "folder", "pipe", "linked", "nowhere/x"]),
    "--reference": st.text(max_size=5),
    "--unlearned": FILES,
    "--original": FILES,
    "--record": FILES,
    "--target": st.sampled_from(["y", "a", "", "\x1b"]),
    "--plot": FILES,
}
OTHERS = ("--unlearned", "--original", "--record", "--target", "--plot")
COMMANDS = {
    "forget": [option for option in OPTIONS if option not in ("--task", "--ids", *OTHERS)],
    "audit": ["--task", "--forget", "--original", "--record", "--report", "--seed", "--hash-key"],
    "blanket": ["--plot", "--seed"],
    "slices": [],
}


@st.composite
def lines(draw):
    """A command with most of what it needs."""
    command = draw(st.sampled_from(["forget"] * 5 + ["audit"] * 2 + ["blanket", "slices"]))
    words = [command]
    if command == "blanket":
        words += [draw(st.sampled_from(["t.csv", "taken.csv", "pipe.csv", "folder.csv", "none.csv"])), "--target", "y"]
    elif command == "audit":
        words += [
            "--task",
            "fuzz_tasks:task",
            "--unlearned",
            draw(st.sampled_from(["taken.pt", "text.pt", "folder.pt"])),
        ]
    else:
        words += ["--task", draw(OPTIONS["--task"])]
    if command == "forget":
        words += ["--ids", draw(st.one_of(st.just("3,5"), WORDS))] if draw(st.booleans()) else []
        words += ["--out", draw(st.one_of(st.just("new.pt"), st.just("taken.safetensors"), FILES))]
    for option in draw(st.lists(st.sampled_from(COMMANDS[command] or ["--json"]), max_size=2, unique=True)):
        words += [option] if option == "--json" else [option, draw(OPTIONS[option])]
    return words


@pytest.fixture
def furnish(tmp_path, monkeypatch):
    """Makes the folder anew, with a sound file, one that is none, a pipe and a folder of every ending."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "fuzz_tasks.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    state = scope["task"]().model.state_dict()

    def make():
        for path in tmp_path.iterdir():
            if path.name not in ("fuzz_tasks.py", "__pycache__", "home"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for ending in ENDINGS:
            (tmp_path / f"taken{ending}").write_text("a,y\n1,2\n2,1\n3,3\n4,1\n")
            (tmp_path / f"text{ending}").write_text("7\n9\n")
            os.mkfifo(tmp_path / f"pipe{ending}")
            (tmp_path / f"folder{ending}").mkdir()
            (tmp_path / f"linked{ending}").symlink_to(f"elsewhere{ending}")
        shutil.copy(tmp_path / "taken.csv", tmp_path / "t.csv")
        torch.save(state, tmp_path / "taken.pt")
        from safetensors.torch import save_file

        save_file(state, tmp_path / "taken.safetensors")

    return make


def is_whole(path):
    """Whether a file that a command wrote can be read."""
    try:
        if path.suffix == ".pt":
            return bool(torch.load(path, weights_only=True))
        if path.suffix == ".safetensors":
            return bool(load_file(path))
        if path.suffix == ".json":
            return bool(json.loads(path.read_text()))
        if path.suffix == ".png":
            Image.open(path).load()
    except Exception:
        return False
    return path.stat().st_size > 0 and (path.suffix != ".html" or path.read_text().rstrip().endswith("</html>"))


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".json", ".html", ".png", ".csv"])
def test_an_empty_file_is_not_whole(tmp_path, ending):
    (tmp_path / f"a{ending}").touch()
    assert not is_whole(tmp_path / f"a{ending}")


@pytest.mark.slow
def test_commands(furnish, tmp_path):
    tried = Tried("commands")

    @tried.on(lines())
    def check(words):
        furnish()
        old = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with tried.ending(words):
            done = CliRunner().invoke(cli, words)
            if done.exception is not None:
                raise done.exception
        no_drafts(tmp_path)
        for path in tmp_path.iterdir():
            if path.is_file() and path.read_bytes() != old.get(path):
                assert is_whole(path), f"{words!r} left {path.name} half written"

    check()
    tried.require()
