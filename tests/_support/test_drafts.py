"""Drafts that killed runs left are removed by the next write, and nothing of others is."""

import ast
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import excise
from excise._support import drafts
from excise._support.drafts import NAME
from excise._support.files import whole_file, write_whole
from excise.errors import InputError
from excise.task.weights import save_weights


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def a_draft(folder, process, *, machine=None, days=0.0):
    """What a process would leave behind."""
    place = folder / f".excise-draft-{machine or drafts._machine()}-{process}-{os.urandom(8).hex()}"
    place.mkdir()
    (place / "a.txt").write_text("half")
    (place / ".tmpABC").write_text("of a library")
    changed = time.time() - days * 86_400
    for path in (place / "a.txt", place / ".tmpABC", place):
        os.utime(path, (changed, changed))
    return place


@pytest.fixture
def dead():
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_draft_of_a_dead_process_is_removed_by_the_next_write(tmp_path, dead):
    stray = a_draft(tmp_path, dead)
    write_whole(tmp_path / "another.txt", "x")
    assert not stray.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["another.txt"]


def test_the_draft_of_a_process_that_is_alive_stays(tmp_path):
    mine, of_the_first = a_draft(tmp_path, os.getpid()), a_draft(tmp_path, 1)
    write_whole(tmp_path / "a.txt", "x")
    assert mine.exists()
    assert of_the_first.exists()


def test_two_writers_at_once_leave_each_others_drafts(tmp_path):
    with whole_file(tmp_path / "a.txt") as one, whole_file(tmp_path / "a.txt") as two:
        one.write_text("one")
        two.write_text("two")
        assert NAME.fullmatch(one.parent.name)
        assert one.parent != two.parent
    assert (tmp_path / "a.txt").read_text() == "one"  # who ends last
    assert names(tmp_path) == ["a.txt"]


def test_what_another_machine_left_is_removed_after_a_day(tmp_path, dead):
    young = a_draft(tmp_path, dead, machine="01234567")
    old = a_draft(tmp_path, dead, machine="01234567", days=1.1)
    reused = a_draft(tmp_path, os.getpid(), days=1.1)
    write_whole(tmp_path / "a.txt", "x")
    assert young.exists()
    assert not old.exists()
    assert not reused.exists()


def test_what_is_no_draft_stays_whatever_its_name(tmp_path, dead):
    name = f".excise-draft-{drafts._machine()}-{dead}-0123456789abcdef"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "precious").write_text("x")
    (tmp_path / name).symlink_to(tmp_path / "theirs")
    (tmp_path / f"{name}.txt").write_text("a file")
    (tmp_path / name.replace("cdef", "cdee")).write_text("a file of a draft's name")
    (tmp_path / ".a.0123456789abcdef.txt").write_text("hidden")
    (tmp_path / f"x{name}").mkdir()
    before = names(tmp_path)
    write_whole(tmp_path / "a.txt", "x")
    assert names(tmp_path) == sorted([*before, "a.txt"])
    assert (tmp_path / "theirs" / "precious").read_text() == "x"


def test_what_another_user_left_stays(tmp_path, dead, monkeypatch):
    stray = a_draft(tmp_path, dead)
    monkeypatch.setattr(os, "geteuid", lambda: stray.stat().st_uid + 1)
    write_whole(tmp_path / "a.txt", "x")
    assert stray.exists()


def test_a_stray_that_cannot_be_removed_does_not_stand_in_the_way(tmp_path, dead, monkeypatch):
    a_draft(tmp_path, dead)

    def refused(*_, **options):
        assert options == {"ignore_errors": True}

    monkeypatch.setattr(shutil, "rmtree", refused)
    write_whole(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_a_draft_is_for_its_owner_alone(tmp_path):
    with whole_file(tmp_path / "a.txt") as draft:
        draft.write_text("x")
        assert draft.name == "a.txt"
        assert draft.parent.stat().st_mode & 0o777 == 0o700


def test_a_name_as_long_as_the_disk_takes_is_written(tmp_path):
    name = "µ" * 120 + ".json"
    write_whole(tmp_path / name, "x")
    assert names(tmp_path) == [name]
    with pytest.raises(InputError, match="could not be written \\(File name too long"):
        write_whole(tmp_path / ("µ" * 200), "x")


# ---- what is no file


def pipe(path):
    os.mkfifo(path)


def bound(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # names of sockets are short


KINDS = {"a folder": Path.mkdir, "a pipe": pipe, "a device or socket": bound}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_a_link", [False, True])
def test_what_is_no_file_is_named_and_left_as_it_is(tmp_path, kind, by_a_link, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a.pt"
    KINDS[kind](place)
    if by_a_link:
        (tmp_path / "link.pt").symlink_to(place)
        place = tmp_path / "link.pt"
    before, mode = names(tmp_path), place.stat().st_mode
    for write in (lambda: write_whole(place, "x"), lambda: save_weights(nn.Linear(1, 1), place)):
        with pytest.raises(InputError, match=rf"a\.pt|link\.pt: could not be written \(it is {kind}\); name a file"):
            write()
    assert place.stat().st_mode == mode
    assert names(tmp_path) == before


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_refused(device):
    with pytest.raises(InputError, match=rf"{device}: could not be written \(it is a device or socket\)"):
        write_whole(device, "x")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a\0b.txt", "a name can't have the character NUL"),
        ("file/a.txt", r"file/a\.txt: could not be written \(Not a directory\)"),
        ("gone/a.txt", r"could not be written \(No such file"),
        ("round.txt", r"could not be written \(Too many levels of symbolic links\)"),
        (".", "it is a folder"),
    ],
)
def test_a_place_that_cannot_be_is_named(tmp_path, name, words):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "round.txt").symlink_to("round.txt")
    with pytest.raises(InputError, match=words):
        write_whole(tmp_path / name, "x")
    assert (tmp_path / "file").read_text() == "mine"


# ---- where the disk says no


@pytest.mark.parametrize("call", ["mkdir", "touch", "chmod", "replace"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EIO])
def test_whichever_call_fails_the_old_file_is_whole(tmp_path, monkeypatch, call, number):
    file = tmp_path / "a.pt"
    save_weights(nn.Linear(2, 2), file)
    before = file.read_bytes()

    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, refused)
        with pytest.raises(InputError, match=re.escape(f"a.pt: could not be written ({os.strerror(number)})")):
            save_weights(nn.Linear(2, 2), file)
    assert file.read_bytes() == before
    assert names(tmp_path) == ["a.pt"]


def test_a_folder_on_a_disk_that_is_read_only():
    """/proc can't be written by root either."""
    with pytest.raises(InputError, match=r"/proc/a\.pt: could not be written"):
        save_weights(nn.Linear(2, 2), Path("/proc/a.pt"))


# ---- one way to write

WRITING = {"write_text", "write_bytes", "savefig", "save_file", "save", "to_csv", "to_parquet", "to_json", "tofile"}
WRITING |= {"savez", "savez_compressed", "savetxt", "to_pickle", "imsave", "copyfile", "copy2"}
HERE = {  # inside whole_file, or into memory
    "_support/files.py": {"write_bytes", "savefig"},
    "task/weights.py": {"save_file", "save", "open"},
    "cli/requests/register.py": {"open"},
    "evidence/population/pieces.py": {"savez"},
    "training/model_cache.py": {"save_file"},
    "unlearning/embeddings.py": {"save_file"},
    "reproduce/framework/steps.py": {"save"},
    "reproduce/__init__.py": {"savefig"},
    "planning/stopwatch.py": {"write_text"},  # to /proc, which is no file on a disk
}


def writes(file):
    """Names of calls in a module that may write a file in place."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = (*node.args, *(word.value for word in node.keywords))
            words = [str(one.value) for one in given if isinstance(one, ast.Constant)]
            opened = name == "open" and any(re.fullmatch("[wax]b?t?[+]?", word) for word in words)
            ours = name == "save" and ast.unparse(node.func) != "torch.save"  # of an outcome
            if opened or (name in WRITING and not ours):
                found.add(name)
    return found


@pytest.mark.slow
def test_no_other_place_writes_files():
    home = Path(excise.__file__).parent
    found = {str(file.relative_to(home)): writes(file) for file in home.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == HERE


def test_weights_survive_being_their_own_source(tmp_path):
    """Read and written over again and again, as by --out equal to --model."""
    from excise.task.weights import load_weights

    for name in ("a.pt", "a.safetensors"):
        model = nn.Linear(300, 300)
        save_weights(model, tmp_path / name)
        for _ in range(3):
            found = nn.Linear(300, 300)
            load_weights(found, tmp_path / name)
            save_weights(found, tmp_path / name)
        assert torch.equal(found.weight, model.weight)
