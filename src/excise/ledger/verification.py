"""Verification: whether a ledger, its model files and its certificates are as they were written, to the last byte.

The events are followed from the first to the last, each bound to the one before by its hash, the last one sealed under
the ledger's key. All other tables are built anew from them, in a temporary database, and compared row by row.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Boolean, Connection, Integer, Table, func, insert, select, type_coerce

from excise._support.file_hashes import sha256_of_file
from excise.errors import ExciseError, InputError
from excise.ledger.database import Database
from excise.ledger.events import AT_ONCE, FIRST, Event, Head, canonical, read_events
from excise.ledger.projection import project
from excise.ledger.purging import late_leftovers
from excise.ledger.schema import CERTIFICATES, EVENTS, LEDGERS, METADATA, PROJECTED, TURNS
from excise.ledger.versions import ModelFiles, all_versions

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written."""

    where: str
    """Such as ``event 17`` or ``requests r-4``."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """What was looked at, and what is wrong."""

    events: int
    versions: int
    certificates: int
    problems: tuple[Problem, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_ledger(ledger: Ledger) -> Verification:
    """Look at everything; the first event that was altered, removed or inserted is named."""
    problems: list[Problem] = []
    counts = {"events": 0, "versions": 0, "certificates": 0}
    for part in (_file, _events, _certificates, _turns, _models, _leftovers):
        try:
            with ledger.database.reading() as connection:
                problems += part(ledger, connection, counts)
        except (ExciseError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            said = str(error).partition("\n")[0]
            problems.append(Problem(f"the ledger's {part.__name__.strip('_')}", f"can't be read: {said}"))
    return Verification(**counts, problems=tuple(problems))


def _file(ledger: Ledger, connection: Connection, _: dict[str, int]) -> Iterator[Problem]:
    """An SQLite file's own structure: an index that was altered gives other rows than the table has."""
    if ledger.database.is_sqlite:
        for (said,) in connection.exec_driver_sql("PRAGMA integrity_check(3)"):
            if said != "ok":
                yield Problem("the database file", f"was altered: {str(said).splitlines()[0]}.")


def _events(ledger: Ledger, connection: Connection, counts: dict[str, int]) -> Iterator[Problem]:
    """The chain, its end, and all that follows from it."""
    with tempfile.TemporaryDirectory(prefix="excise-verify-") as folder:
        copy = Database(Path(folder) / "rebuilt.db")
        chain = _Chain()
        with copy.engine.connect().execution_options(writing=True) as rebuilt, rebuilt.begin():
            METADATA.create_all(rebuilt)
            rebuilt.execute(insert(LEDGERS), _empty_ledger())
            followed = chain.followed(read_events(connection))
            while some := list(islice(followed, AT_ONCE)):
                project(rebuilt, some)
            counts["events"] = chain.number
            yield from chain.problems
            if not chain.problems:
                yield from _end(ledger, connection, chain)
                yield from _own_row(connection, rebuilt, chain)
                for table in PROJECTED:
                    yield from _compared(table, connection, rebuilt)
        copy.engine.dispose()


class _Chain:
    """Follows events, up to the first one that does not fit."""

    def __init__(self) -> None:
        self.number, self.hash = 0, FIRST
        self.first: Event | None = None
        self.problems: list[Problem] = []

    def followed(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            wrong = self._what_is_wrong(event)
            if wrong is not None:
                self.problems.append(wrong)
                return
            self.number, self.hash = event.number, event.hash
            self.first = self.first or event
            yield event

    def _what_is_wrong(self, event: Event) -> Problem | None:
        if event.number != self.number + 1:
            return Problem(f"event {self.number + 1}", f"was removed: the next one has the number {event.number!r}.")
        if event.hash != event.computed_hash():
            return Problem(f"event {event.number}", "was altered: its hash is another.")
        if event.previous != self.hash:
            before = f"event {self.number}" if self.number else "the beginning"
            return Problem(f"event {event.number}", f"does not follow {before}: one of them was replaced, or inserted.")
        return None


def _end(ledger: Ledger, connection: Connection, chain: _Chain) -> Iterator[Problem]:
    """Whether the chain ends where the sealed head says."""
    row = connection.execute(select(LEDGERS)).one()
    if row.seal != Head(row.events, row.head).sealed(ledger.seal):
        yield Problem("the ledger's head", "was altered: its seal is not of this ledger's key.")
    elif row.events != chain.number:
        at = min(row.events, chain.number) + 1
        verb = "was removed" if row.events > chain.number else "was inserted"
        yield Problem(f"event {at}", f"{verb}: the head is event {row.events}, and {chain.number} are there.")
    elif row.head != chain.hash:
        yield Problem(f"event {chain.number}", "was replaced: the sealed head has another hash.")


def _own_row(connection: Connection, rebuilt: Connection, chain: _Chain) -> Iterator[Problem]:
    """The ledger's own row against the event that began it."""
    row = connection.execute(select(LEDGERS)).one()
    begun = {} if chain.first is None else chain.first.values
    for name in ("ledger_id", "key_check", "public_key"):
        if getattr(row, name) != begun.get(name):
            yield Problem("ledgers 1", f"was altered: {name} is not that of event 1.")
    if row.head_version != rebuilt.execute(select(LEDGERS.c.head_version)).scalar():
        yield Problem("ledgers 1", "was altered: head_version is not that of the last version's event.")
    if connection.execute(select(func.count()).select_from(LEDGERS)).scalar() != 1 or row.place != 1:
        yield Problem("ledgers", "was altered: there must be one row.")


def _compared(table: Table, connection: Connection, rebuilt: Connection) -> Iterator[Problem]:
    """Rows that differ from those that the events give; the first one is enough."""
    keys = list(table.primary_key.columns)
    columns = [
        type_coerce(one, Integer).label(one.name) if _is_sqlite_flag(one, connection) else one for one in table.c
    ]
    query = select(*columns).order_by(*(_as_bytes(column, connection) for column in keys))
    plain = select(table).order_by(*keys)
    there = connection.execution_options(yield_per=AT_ONCE).execute(query).mappings()
    wanted = rebuilt.execution_options(yield_per=AT_ONCE).execute(plain).mappings()
    for found, expected in zip_longest(there, wanted):
        if found is not None and expected is not None and dict(found) == dict(expected):
            continue
        row = expected if expected is not None else found
        name = " ".join([table.name, *(str(row[key.name]) for key in keys)])
        if found is None or expected is None or any(found[key.name] != expected[key.name] for key in keys):
            yield Problem(name, "was removed, inserted or renamed: it is not what the events give.")
        else:
            others = [str(column) for column in expected if found[column] != expected[column]]
            yield Problem(name, f"was altered: {', '.join(others)} is not what the events give.")
        return


def _is_sqlite_flag(column: Any, connection: Connection) -> bool:
    """Whether it is true or false in words alone: SQLite takes any number there, and the driver shows it as true."""
    return connection.dialect.name == "sqlite" and isinstance(column.type, Boolean)


def _as_bytes(column: Any, connection: Connection) -> Any:
    """In the order of bytes, as SQLite has it, whatever the server's language."""
    text = connection.dialect.name == "postgresql" and hasattr(column.type, "length")
    return column.collate("C") if text else column


def _certificates(_: Ledger, connection: Connection, counts: dict[str, int]) -> Iterator[Problem]:
    """Each certificate against the event of its hash, and the head that it names against the events."""
    joined = EVENTS.outerjoin(CERTIFICATES, EVENTS.c.subject_request_id == CERTIFICATES.c.subject_request_id)
    query = (
        select(EVENTS.c.subject_request_id, EVENTS.c.body, CERTIFICATES.c.sha256, CERTIFICATES.c.text)
        .select_from(joined)
        .where(EVENTS.c.kind == "certified")
        .order_by(EVENTS.c.number)
    )
    for name, body, sha256, text in connection.execution_options(yield_per=100).execute(query):
        counts["certificates"] += 1
        where = f"certificates {name}"
        if text is None:
            yield Problem(where, "was removed.")
        elif {hashlib.sha256(text.encode()).hexdigest(), sha256} != {json.loads(body)["sha256"]}:
            yield Problem(where, "was altered: its hash is not that of its event.")
        else:
            said = json.loads(text)["body"]["ledger"]
            found = connection.execute(select(EVENTS.c.hash).where(EVENTS.c.number == said["event"])).scalar()
            if found != said["head"]:
                yield Problem(where, f"names another event {said['event']} than the ledger has; which was replaced?")
    there = connection.execute(select(func.count()).select_from(CERTIFICATES)).scalar() or 0
    if there > counts["certificates"]:
        yield Problem("certificates", f"{there - counts['certificates']} were inserted: no event knows them.")


def _turns(ledger: Ledger, connection: Connection, _: dict[str, int]) -> Iterator[Problem]:
    for row in connection.execute(select(TURNS)):
        if row.seal != ledger.seal(canonical(["turn", row.worker, row.until]).encode()):
            yield Problem(f"turns {row.ticket}", "was altered: its seal is not of this ledger's key.")


def _models(ledger: Ledger, connection: Connection, counts: dict[str, int]) -> Iterator[Problem]:
    """The files of all versions that are held."""
    files = ModelFiles.of(ledger)
    for version in all_versions(connection):
        counts["versions"] += 1
        if version.purged_time is not None:
            continue
        held = [(files.path(version.version), version.file_sha256)]
        if version.working_sha256 is not None:
            held.append((files.working_path(version.version), version.working_sha256))
        for path, sha256 in held:
            where = f"model version {version.number} ({path.name})"
            try:
                if sha256_of_file(path) != sha256:
                    yield Problem(where, "was altered: its hash is not the ledger's.")
            except InputError as error:
                yield Problem(where, f"is missing, or can't be read ({error}).")


def _leftovers(ledger: Ledger, connection: Connection, _: dict[str, int]) -> Iterator[Problem]:
    """What was computed with deleted samples, and is there past its date."""
    for where, what in late_leftovers(ledger, connection):
        yield Problem(where, what)


def _empty_ledger() -> dict[str, Any]:
    nothing = {"ledger_id": "", "key_check": "", "public_key": "", "head": FIRST, "seal": ""}
    return {"place": 1, "events": 0, **nothing}
