"""Every file is there whole or not at all, whatever happens while it is written."""

import os
import stat
from pathlib import Path

import pytest
from torch import nn

from excise._support.files import whole_file, write_figure, write_json, write_whole
from excise.errors import InputError
from excise.task.weights import save_weights


def strays(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_text_and_bytes_are_written(tmp_path):
    write_whole(tmp_path / "a.txt", "α")
    write_whole(tmp_path / "b.bin", b"\x00")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "α"
    assert (tmp_path / "b.bin").read_bytes() == b"\x00"
    assert strays(tmp_path) == []


def test_after_an_error_the_old_file_is_whole(tmp_path):
    file = tmp_path / "a.txt"
    write_whole(file, "old")

    def interrupted():
        with whole_file(file) as draft:
            draft.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "old"
    assert strays(tmp_path) == []


def test_the_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(tmp_path, monkeypatch):
    """Or a machine that loses its power has the name without the content, or neither."""
    order, sync, replace = [], os.fsync, Path.replace

    def watched_sync(descriptor):
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        sync(descriptor)

    def watched_replace(draft, target):
        order.append("name")
        return replace(draft, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_whole(tmp_path / "a", "x")
    assert order == ["content", "name", "folder"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode):
    for name in ("a.pt", "a.safetensors"):
        file = tmp_path / name
        file.touch()
        file.chmod(mode)
        save_weights(nn.Linear(2, 2), file)
        assert file.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_permissions_that_others_get(tmp_path):
    (tmp_path / "plain").touch()
    for name in ("a.pt", "a.safetensors"):
        save_weights(nn.Linear(2, 2), tmp_path / name)
        assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "there" / "file.txt")
    write_whole(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "there" / "file.txt").read_text() == "new"


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_whole(path, "x"),
        lambda path: write_json(path, {"a": 1}),
        lambda path: save_weights(nn.Linear(1, 1), path.with_suffix(".pt")),
        lambda path: save_weights(nn.Linear(1, 1), path.with_suffix(".safetensors")),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path, write):
    with pytest.raises(InputError, match=r"gone/a.*could not be written \(No such file"):
        write(tmp_path / "gone" / "a.txt")


@pytest.mark.slow
def test_an_unknown_kind_of_picture_is_named(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    with pytest.raises(InputError, match=r"a\.xyz: the plot could not be written"):
        write_figure(tmp_path / "a.xyz", figure)
    assert strays(tmp_path) == []
    assert not (tmp_path / "a.xyz").exists()


@pytest.mark.parametrize("name", ["..png", "a.b.PNG", ". .png"])
def test_a_picture_is_in_the_file_that_was_named(tmp_path, name):
    """Also where matplotlib sees no ending in the name, and would write to another."""
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(1, 1))
    write_figure(tmp_path / name, figure)
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a", ".png", "..pt", "..", "a.pgf"])
def test_a_name_of_no_kind_of_picture_is_refused(tmp_path, name):
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(1, 1))
    with pytest.raises(InputError, match=r"needs an ending|could not be written|needs LaTeX"):
        write_figure(f"{tmp_path}/{name}", figure)
    assert list(tmp_path.iterdir()) == []


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
