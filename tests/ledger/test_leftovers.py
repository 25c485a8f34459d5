"""Leftovers: what knows deleted samples, by when it must be gone, and that nothing else is ever removed."""

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import InputError
from excise.ledger import leftovers
from excise.ledger.leftovers import Artefact, ModelVersion, Purged, due, first_deletion, overdue, purge, tainted

DAY = datetime(2030, 1, 1, tzinfo=UTC)


def version(number, deleted, days=0):
    return ModelVersion(number, deleted, DAY + timedelta(days=days), f"{number:064x}", f"{number + 1000:064x}")


def artefact(path="x", *, kind="curvature", content=b"some", at=0):
    return Artefact(Path(path), kind, hashlib.sha256(content).hexdigest(), at, DAY)


def written(folder, name="file", content=b"some", **options):
    (folder / name).write_bytes(content)
    return artefact(folder / name, content=content, **options)


@given(st.lists(st.integers(0, 2), max_size=6), st.none() | st.integers(0, 6), st.randoms())
def test_what_was_made_before_a_deletion_knows_its_samples(deletions, at, random):
    versions = [version(number, deleted) for number, deleted in enumerate(deletions)]
    since = [number for number, deleted in enumerate(deletions) if deleted > 0 and (at is None or number > at)]
    random.shuffle(versions)
    made = artefact(at=at)
    assert tainted(made, versions) == bool(since)
    first = first_deletion(made, versions)
    assert (None if first is None else first.version) == (since[0] if since else None)


def test_it_is_due_so_many_days_after_the_first_deletion():
    versions = [version(0, 0), version(1, 0, days=2), version(2, 3, days=5), version(3, 1, days=9)]
    made = artefact(at=0)
    assert due(made, versions[2].completed_time, 30) == DAY + timedelta(days=35)
    assert due(made, DAY, {"curvature": 7, "report": 90}) == DAY + timedelta(days=7)
    last = DAY + timedelta(days=5 + 30)
    assert not overdue(made, versions, 30, last)
    assert overdue(made, versions, 30, last + timedelta(seconds=1))
    assert not overdue(artefact(at=3), versions, 0, DAY + timedelta(days=999))
    assert overdue(artefact(at=2), versions, 0, DAY + timedelta(days=9, seconds=1))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match=r"kind must be one of .*'retrained model'.*Did you mean 'gradients'"):
        artefact(kind="gradient")
    with pytest.raises(InputError, match="sha256 must be 64 hexadecimal digits"):
        Artefact(Path("x"), "other", "A" * 64, 0, DAY)
    with pytest.raises(InputError, match="made_time must be a time with its zone"):
        Artefact(Path("x"), "other", "a" * 64, 0, datetime(2030, 1, 1))
    with pytest.raises(InputError, match="version must be a whole number, 0 or more"):
        artefact(at=-1)
    with pytest.raises(InputError, match="days has no number for 'curvature'"):
        due(artefact(), DAY, {"report": 1})
    with pytest.raises(InputError, match="a kind in days must be one of"):
        due(artefact(), DAY, {"curvature": 1, "reports": 1})
    for days in (-1, 1.5, {"curvature": -1}):
        with pytest.raises(InputError, match="days must be a whole number"):
            due(artefact(), DAY, days)
    with pytest.raises(InputError, match="completed_time must be a time with its zone"):
        due(artefact(), datetime(2030, 1, 1), 1)


def test_a_file_is_removed_and_its_folder_forced_to_disk(tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(
        leftovers, "force_to_disk", lambda path: forced.append((path, sorted(one.name for one in path.iterdir())))
    )
    one = written(tmp_path, "one")
    written(tmp_path, "other")
    assert purge(one) == Purged(one.path, one.sha256, 4, was_there=True)
    assert forced == [(tmp_path, ["other"])]
    purge(one)  # as after a stop between the two
    assert forced == [(tmp_path, ["other"])] * 2


def test_a_purge_can_be_done_again(tmp_path):
    one = written(tmp_path)
    purge(one)
    assert purge(one) == Purged(one.path, one.sha256, 0, was_there=False)
    assert not purge(artefact(tmp_path / "no folder" / "file")).was_there
    assert not purge(artefact(written(tmp_path, "file").path / "inside")).was_there
    assert (tmp_path / "file").exists()


def test_another_file_under_the_name_stays(tmp_path):
    one = written(tmp_path)
    one.path.write_bytes(b"else")
    with pytest.raises(InputError, match=r"file: is not the file that was registered \(another SHA-256\)"):
        purge(one)
    assert one.path.read_bytes() == b"else"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (os.mkfifo, "is a device"),
        (lambda path: path.symlink_to(path.parent / "target"), "is a link"),
    ],
)
def test_what_is_no_file_stays(tmp_path, make, words):
    target = written(tmp_path, "target")
    make(tmp_path / "file")
    with pytest.raises(InputError, match=words):
        purge(artefact(tmp_path / "file"))
    assert os.path.lexists(tmp_path / "file")
    assert target.path.read_bytes() == b"some"


def test_a_file_that_takes_the_place_of_another_meanwhile_stays(tmp_path, monkeypatch):
    one = written(tmp_path)
    other = written(tmp_path, "other")
    opened = os.open

    def exchanged(path, *arguments):
        if path == one.path:
            other.path.replace(one.path)
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", exchanged)
    with pytest.raises(InputError, match="is not the file that was registered"):
        purge(one)
    assert one.path.exists()


def test_a_disk_that_refuses_is_said(tmp_path, monkeypatch):
    one = written(tmp_path)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"file: can't be removed \(Permission denied\)"):
        purge(one)
    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(InputError, match=r"file: can't be looked at, and is not removed \(Permission denied\)"):
        purge(one)
