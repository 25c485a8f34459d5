"""What is left over of deleted samples: old model versions and registered files, listed, and purged by a date."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from excise._support.checks import choice, whole
from excise._support.file_hashes import sha256_of_file
from excise._support.reading import is_regular_file
from excise.errors import InputError
from excise.ledger.events import Entry, canonical
from excise.ledger.leftover_known import Known
from excise.ledger.leftover_scan import scan
from excise.ledger.leftovers import KINDS, Artefact, ModelVersion, due, first_deletion, modified_time, purge
from excise.ledger.schema import ARTEFACTS, EVENTS
from excise.ledger.times import read_time, written
from excise.ledger.training_set import TrainingSet
from excise.ledger.versions import ModelFiles, Version, all_versions, deleted_since

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.task.task import Task

DAYS = 30  # that leftovers may be kept after the deletion, unless the ledger says otherwise


@dataclass(frozen=True)
class Leftover:
    """A file that was computed with samples that are deleted since."""

    path: str
    kind: str
    sha256: str
    purge_by: str
    is_late: bool
    """Whether it should be gone by now."""
    why: str
    """How it is known."""
    event: dict[str, Any] | None
    """What is recorded when it is purged; None for what a scan found, which is the user's to remove."""

    def as_dict(self) -> dict[str, Any]:
        """In plain values."""
        return asdict(self)


def register(ledger: Ledger, file: str | Path, kind: str) -> None:
    """Register a file that was computed with the samples that the head version retains.

    Args:
        ledger: The ledger.
        file: Such as an optimizer's state or kept curvature.
        kind: What it is: ``excise.ledger.leftovers.KINDS`` has the words.
    """
    place = Path(file).resolve()
    choice(kind, KINDS, "kind")
    sha256 = sha256_of_file(place)
    with ledger.writing() as (connection, record):
        versions = list(all_versions(connection))
        if not versions:
            raise InputError("the ledger has no model version yet, so that nothing can be left over of one.")
        body = {"path": str(place), "kind": kind, "sha256": sha256, "version": versions[-1].version}
        record([Entry("registered", body)])


def set_retention(ledger: Ledger, days: int) -> None:
    """Say for how many days after a deletion leftovers may be kept."""
    with ledger.writing() as (_, record):
        record([Entry("retention", {"days": whole(days, "days", 0)})])


def leftovers_of(ledger: Ledger, *, folders: Iterable[str | Path] = (), task: Task | None = None) -> list[Leftover]:
    """All that is there, the first to go first.

    Args:
        ledger: The ledger.
        folders: To be looked through for files that nobody registered.
        task: With it retrained models, reports and embeddings are recognised too, not only copies of versions.
    """
    with ledger.database.reading() as connection:
        state = _State.of(ledger, connection)
        found = list(state.leftovers())
        gone = deleted_since(connection, None) if task is not None else []
    places = [Path(folder) for folder in folders]
    if places:
        known = Known(state.versions, tuple(one for one, _ in state.artefacts))
        if task is not None and state.head is not None:
            samples = TrainingSet(task, ledger.keys)
            samples.follow(state.head, gone)
            known = Known.of(task, samples.gone, known.versions, known.artefacts)
        found += state.scanned(places, known, {one.path for one in found})
    return sorted(found, key=lambda one: (one.purge_by, one.path))


def purge_leftovers(ledger: Ledger, *, at_once: bool = False) -> list[Leftover]:
    """Remove what is past its date, or all of it; what an interrupted purge did not get to is removed now.

    A file that is not as it was registered stays, and is named in an error when all others are gone.
    """
    wanted = [one for one in leftovers_of(ledger) if one.event is not None and (one.is_late or at_once)]
    changed = [one for one in wanted if not _is_same(Path(one.path), one.sha256)]
    events = [one.event for one in changed]
    going = [one for one in wanted if one.event not in events]
    with ledger.writing() as (_, record):
        unique = {canonical(one.event): one.event for one in going if one.event is not None}
        record([Entry("purged", event) for event in unique.values()])
    with ledger.database.reading() as connection:
        state = _State.of(ledger, connection)
    for artefact in state.purged():
        if _is_same(artefact.path, artefact.sha256):  # else another file has the name since
            purge(artefact)
    for path in _strays(ledger, state, late=not at_once):
        path.unlink(missing_ok=True)
    if changed:
        raise InputError(
            f"{', '.join(one.path for one in changed)}: not the file that was registered (another SHA-256), and not "
            "removed; look at it. Remove it yourself, or register it anew if it is to stay."
        )
    return going


def late_leftovers(ledger: Ledger, connection: Connection) -> Iterator[tuple[str, str]]:
    """What should be gone and is there: where, and why."""
    state = _State.of(ledger, connection)
    for one in state.leftovers():
        if one.is_late:
            yield f"{one.kind} {Path(one.path).name}", f"was to be gone by {one.purge_by[:10]}; purge it."
    for artefact in state.purged():
        if _is_same(artefact.path, artefact.sha256):
            yield f"{artefact.kind} {artefact.path.name}", "was purged, but the file is there; purge again."
    for path in _strays(ledger, state, late=True):
        yield f"stray {path.name}", "is of no version, and was put aside long ago; look at it, then purge."


def _strays(ledger: Ledger, state: _State, *, late: bool) -> list[Path]:
    """Files that interrupted runs left, and that were put aside; with ``late`` those that should be gone by now."""
    end = state.now - timedelta(days=state.days)
    found = sorted(ModelFiles.of(ledger).strays.glob("*.safetensors"))
    return [path for path in found if not late or modified_time(path.stat()) < end]


@dataclass(frozen=True)
class _State:
    """Model versions and registered files, as the ledger has them."""

    head: Version | None
    versions: tuple[ModelVersion, ...]
    artefacts: tuple[tuple[Artefact, dict[str, Any]], ...]
    """With what is recorded when one is purged."""
    gone: tuple[Artefact, ...]
    days: int
    now: datetime

    @staticmethod
    def of(ledger: Ledger, connection: Connection) -> _State:
        versions, files = list(all_versions(connection)), ModelFiles.of(ledger)
        numbers = {one.version: one.number for one in versions}
        held: list[tuple[Artefact, dict[str, Any]]] = []
        gone: list[Artefact] = []
        for one in versions:
            parts = _files_of(one, files)
            if one.purged_time is None:
                held += [(part, {"version": one.version}) for part in parts]
            else:
                gone += parts
        for row in _in_force(connection):
            made = Artefact(Path(row.path), row.kind, row.sha256, numbers[row.version], ledger.clock())
            if row.purged_time is None:
                held.append((made, {"number": row.number}))
            else:
                gone.append(made)
        known = tuple(_model_versions(versions))
        head = versions[-1] if versions else None
        return _State(head, known, tuple(held), tuple(gone), _days(connection), ledger.clock())

    def leftovers(self) -> Iterator[Leftover]:
        """Files that are there and know deleted samples."""
        for artefact, event in self.artefacts:
            found = self._leftover(artefact, "it is registered", event)
            if found is not None and artefact.path.exists():
                yield found

    def scanned(self, folders: list[Path], known: Known, listed: set[str]) -> list[Leftover]:
        """What is found in folders, beyond what is listed already."""
        seen = [one for one in scan(folders, known) if one.stale is not False and str(one.artefact.path) not in listed]
        found = [self._leftover(one.artefact, one.why, None, certain=bool(one.stale)) for one in seen]
        return [one for one in found if one is not None]

    def purged(self) -> tuple[Artefact, ...]:
        """What is recorded as gone."""
        return self.gone

    def _leftover(
        self, artefact: Artefact, why: str, event: dict[str, Any] | None, *, certain: bool = True
    ) -> Leftover | None:
        first = first_deletion(artefact, self.versions)
        if first is None:
            return None
        by = due(artefact, first.completed_time, self.days)
        words = why if certain else f"{why}; whether it knows deleted samples can't be told"
        late = by < self.now and certain
        return Leftover(str(artefact.path), artefact.kind, artefact.sha256, written(by), late, words, event)


def _in_force(connection: Connection) -> list[Any]:
    """Registered files, but for those whose name was registered again for another content."""
    rows = connection.execute(select(ARTEFACTS).order_by(ARTEFACTS.c.number)).all()
    newest = {row.path: row.sha256 for row in rows}
    return [row for row in rows if row.sha256 == newest[row.path] or row.purged_time is not None]


def _is_same(path: Path, sha256: str) -> bool:
    """Whether the file is there, as it was registered."""
    return is_regular_file(path) and not path.is_symlink() and sha256_of_file(path) == sha256


def _files_of(version: Version, files: ModelFiles) -> list[Artefact]:
    made = read_time(version.made_time)
    found = [Artefact(files.path(version.version), "model version", version.file_sha256, version.number, made)]
    if version.working_sha256 is not None:
        secret = files.working_path(version.version)
        found.append(Artefact(secret, "model version", version.working_sha256, version.number, made))
    return found


def _model_versions(versions: list[Version]) -> Iterator[ModelVersion]:
    left = versions[0].retained_count if versions else 0
    for one in versions:
        made = read_time(one.made_time)
        yield ModelVersion(one.number, left - one.retained_count, made, one.file_sha256, one.version)
        left = one.retained_count


def _days(connection: Connection) -> int:
    query = select(EVENTS.c.body).where(EVENTS.c.kind == "retention").order_by(EVENTS.c.number.desc()).limit(1)
    body = connection.execute(query).scalar()
    return DAYS if body is None else int(json.loads(body)["days"])
