"""Leftovers: files that were computed with samples since deleted, by when they must be gone, and their removal.

Removing a file takes its name from the disk. Copies elsewhere, backups, and what a disk keeps of freed blocks are not
reached; ``leftover_scan`` looks for copies.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from excise._support.checks import choice, whole
from excise._support.files import force_to_disk
from excise._support.reading import reason
from excise.errors import InputError

KINDS = (
    "model version",
    "retrained model",
    "curvature",
    "gradients",
    "activations",
    "optimizer state",
    "report",
    "other",
)


@dataclass(frozen=True)
class ModelVersion:
    """What of a model version decides over leftovers."""

    version: int
    """Its number: versions of a ledger are counted as they come."""
    deleted: int
    """How many samples its request deleted; 0 for the first version."""
    completed_time: datetime
    file_sha256: str
    """Of its file, as ``sha256sum`` gives it."""
    weights_sha256: str
    """Of its weights (``hash_of_model``), whatever file they are in."""


@dataclass(frozen=True)
class Artefact:
    """A file that was computed with training samples."""

    path: Path
    kind: str
    """One of ``KINDS``."""
    sha256: str
    version: int | None
    """At which version it was made: with the samples that were retained then. None where nobody knows."""
    made_time: datetime

    def __post_init__(self) -> None:
        choice(self.kind, KINDS, "kind")
        if not _is_digest(self.sha256):
            raise InputError("sha256 must be 64 hexadecimal digits, as sha256sum gives them.")
        if self.version is not None:
            whole(self.version, "version", 0)
        _require_zone(self.made_time, "made_time")


def first_deletion(artefact: Artefact, versions: Iterable[ModelVersion]) -> ModelVersion | None:
    """The first version after the artefact was made that deleted samples, which the artefact therefore knows.

    One of which nobody knows when it was made knows them all. None where nothing was deleted since.
    """
    since = [one for one in versions if one.deleted and (artefact.version is None or one.version > artefact.version)]
    return min(since, key=lambda one: one.version, default=None)


def tainted(artefact: Artefact, versions: Iterable[ModelVersion]) -> bool:
    """Whether it was computed with samples that are deleted now.

    >>> day = datetime(2030, 1, 1, tzinfo=UTC)
    >>> versions = [ModelVersion(number, number, day, "a" * 64, "b" * 64) for number in (0, 1)]
    >>> made = [Artefact(Path("x"), "curvature", "c" * 64, version, day) for version in (0, 1, None)]
    >>> [tainted(one, versions) for one in made]
    [True, False, True]
    """
    return first_deletion(artefact, versions) is not None


def due(artefact: Artefact, completed_time: datetime, days: int | Mapping[str, int]) -> datetime:
    """By when it must be gone: so many days after the deletion was completed, or as many as its kind has.

    >>> made = Artefact(Path("x"), "report", "c" * 64, 0, datetime(2030, 1, 1, tzinfo=UTC))
    >>> due(made, datetime(2030, 1, 1, 12, tzinfo=UTC), {"report": 30, "curvature": 0}).isoformat()
    '2030-01-31T12:00:00+00:00'
    """
    _require_zone(completed_time, "completed_time")
    if isinstance(days, Mapping):
        for kind in days:
            choice(kind, KINDS, "a kind in days")
        if artefact.kind not in days:
            raise InputError(f"days has no number for {artefact.kind!r}; give one for each kind, or one for all.")
        return completed_time + timedelta(days=whole(days[artefact.kind], "days", 0))
    return completed_time + timedelta(days=whole(days, "days", 0))


def overdue(artefact: Artefact, versions: Iterable[ModelVersion], days: int | Mapping[str, int], now: datetime) -> bool:
    """Whether it should be gone by now."""
    first = first_deletion(artefact, versions)
    return first is not None and due(artefact, first.completed_time, days) < now


@dataclass(frozen=True)
class Purged:
    """A file that is gone."""

    path: Path
    sha256: str
    size: int
    """Bytes; 0 where it was not there any more."""
    was_there: bool


def purge(artefact: Artefact) -> Purged:
    """Remove the file; afterwards its name is off the disk, also after a loss of power.

    One that is gone already is no error, so that a purge that was stopped midway can be done again. What is no file, or
    not the file that was registered, is left alone.
    """
    path = artefact.path
    try:
        before = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        if path.parent.is_dir():
            force_to_disk(path.parent)  # which who removed it may not have come to
        return Purged(path, artefact.sha256, 0, was_there=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be looked at, and is not removed ({reason(error)}).") from None
    if not stat.S_ISREG(before.st_mode):
        what = "a link" if stat.S_ISLNK(before.st_mode) else "a folder" if stat.S_ISDIR(before.st_mode) else "a device"
        raise InputError(f"{path}: is {what}, not the file that was registered, and is not removed; look at it.")
    try:
        if _hash_of(path, before) != artefact.sha256:
            raise InputError(
                f"{path}: is not the file that was registered (another SHA-256), and is not removed; look at it, and "
                "register it anew if it is to go."
            )
        path.unlink()
        force_to_disk(path.parent)
    except OSError as error:
        raise InputError(f"{path}: can't be removed ({reason(error)}); see to it that it can be written.") from None
    return Purged(path, artefact.sha256, before.st_size, was_there=True)


def modified_time(about: os.stat_result) -> datetime:
    """When a file was last written, in UTC."""
    return datetime.fromtimestamp(about.st_mtime, UTC)


def _hash_of(path: Path, about: os.stat_result) -> str:
    """Of that very file: one that took its place meanwhile, or a link, has none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - pathlib opens no descriptors
        opened = os.fstat(file.fileno())
        same = (opened.st_dev, opened.st_ino) == (about.st_dev, about.st_ino)
        return hashlib.file_digest(file, "sha256").hexdigest() if same else ""


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def _require_zone(when: object, name: str) -> None:
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise InputError(f"{name} must be a time with its zone.")
