"""Ledger: deletion requests that are never lost, what became of them, and the model versions that answer them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import ColumnElement, Connection, func, select

from excise._support.checks import choice
from excise.errors import InputError
from excise.ledger import migrations
from excise.ledger.beginning import begin_ledger, key_check, require_folder_of, system_user
from excise.ledger.database import Database, folder_beside
from excise.ledger.events import Entry, Event, append, head_of, read_events
from excise.ledger.identities import Identity, Submission, digest
from excise.ledger.keys import LedgerKeys
from excise.ledger.projection import project
from excise.ledger.request import DONE, STATUSES, DeletionRequest, request_of
from excise.ledger.schema import CERTIFICATES, IDENTITIES, LEDGERS, REQUESTS
from excise.ledger.seals import seal_of_request
from excise.ledger.times import Clock, admitted_time, now, one_month_after, written

if TYPE_CHECKING:  # these load torch
    from sqlalchemy import RowMapping

    from excise.ledger.policy import Policy
    from excise.ledger.preview import Preview
    from excise.ledger.processing import Processed
    from excise.ledger.subjects import Finder
    from excise.ledger.verification import Verification
    from excise.ledger.versions import Version
    from excise.task.task import Task

AT_ONCE = 500  # rows a statement: SQLite takes no more than some thousand values
LONGEST_AUTHOR = 128
OPEN = ("pending", "in_progress", "requires_retraining")  # a worker that is at it finds out, and begins again
Subject = Identity | str | Iterable[Identity | str]


class Ledger:
    """A durable record of deletion requests against one model.

    It is a database and a folder of files: model versions, certificates and keys. What it says is committed to disk
    before it is said. Subjects and samples are kept as HMACs under the ledger's key, never as they are.

    Args:
        url: A file, ``sqlite:///requests.db`` or ``postgresql://user@host/name``.
        folder: Where files go; None for one beside an SQLite file.
        create: Whether to begin a new ledger where there is none.
        author: Who is named in events; None for this system's user.
        clock: Tells the time, with its zone.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        folder: str | Path | None = None,
        create: bool = True,
        author: str | None = None,
        clock: Clock = now,
    ) -> None:
        self.database = Database(url)
        self.folder = self._admitted_folder(folder)
        self.author = _admitted_author(system_user() if author is None else author)
        self.clock = clock
        if not self._is_there():
            if not create:
                raise InputError(f"{self.database.shown}: there is no ledger yet; excise requests submit begins one.")
            begin_ledger(self.database, self.folder / "keys", self.author, self.clock())
        with self.database.reading() as connection:
            migrations.require_newest(connection, self.database.shown)
        self.keys = LedgerKeys.read(self.folder / "keys")
        self.id, self._public_key = self._checked()

    def __repr__(self) -> str:
        return f"Ledger({self.database.shown!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back all connections; what was said stays said."""
        self.database.engine.dispose()

    def submit(
        self,
        subject: Subject,
        *,
        subject_request_id: str | None = None,
        received_time: datetime | str | None = None,
        due_date: datetime | str | None = None,
    ) -> DeletionRequest:
        """Take in a request; the same id with the same subject gives the same answer.

        Args:
            subject: Who asks: a key of the task's, an ``Identity``, or several that all are this person.
            subject_request_id: An id of your own; None for a new one.
            received_time: When it came; None for now.
            due_date: By when it is to be answered; None for one month after it came.
        """
        if not isinstance(subject, Identity | Iterable):
            raise InputError(f"subject must be text, an Identity or several, not a {type(subject).__name__}.")
        identities = [subject] if isinstance(subject, Identity | str) else list(subject)
        named = [Identity("key", one) if isinstance(one, str) else one for one in identities]
        times = {
            name: None if value is None else admitted_time(value, name)
            for name, value in (("received_time", received_time), ("due_date", due_date))
        }
        name = str(uuid.uuid4()) if subject_request_id is None else subject_request_id
        return self.submit_all([Submission(name, tuple(named), **times)])[0]

    def submit_all(self, submissions: Iterable[Submission]) -> list[DeletionRequest]:
        """Take in many requests in one transaction: all of them, or none."""
        asked = list(submissions)
        today = self.clock()
        entries = {one.subject_request_id: self._received(one, today) for one in asked}
        for one in asked:
            if self._received(one, today).body["identities"] != entries[one.subject_request_id].body["identities"]:
                raise _other_request(one.subject_request_id)
        with self.writing() as (connection, record):
            known = self._known(connection, list(entries), entries)
            for one in asked:
                if one.subject_request_id not in known:
                    _require_possible_times(one, today)
            record([entry for name, entry in entries.items() if name not in known])
            return self._find(connection, [one.subject_request_id for one in asked])

    def requests(
        self, status: str | None = None, *, due_within: int | None = None, limit: int | None = None
    ) -> Iterator[DeletionRequest]:
        """Requests in the order in which they are due.

        Args:
            status: Only those of a status.
            due_within: Only those that are not answered, and due within so many days.
            limit: At most so many.
        """
        wanted: list[ColumnElement[bool]] = []
        if status is not None:
            wanted.append(REQUESTS.c.status == choice(status, STATUSES, "status"))
        if due_within is not None:
            end = (self.clock() + timedelta(days=due_within)).replace(hour=23, minute=59, second=59)
            wanted += [REQUESTS.c.status.not_in(DONE), REQUESTS.c.due_date <= written(end)]
        query = select(REQUESTS).where(*wanted).order_by(REQUESTS.c.due_date, REQUESTS.c.number).limit(limit)
        with self.database.reading() as connection:
            rows = connection.execution_options(yield_per=AT_ONCE).execute(query).mappings()
            for part in rows.partitions(AT_ONCE):
                yield from self._with_identities(connection, part)

    def request(self, subject_request_id: str) -> DeletionRequest:
        """One request."""
        with self.database.reading() as connection:
            return self._find(connection, [subject_request_id])[0]

    def events(self, subject_request_id: str | None = None) -> Iterator[Event]:
        """What happened, to one request or in all."""
        with self.database.reading() as connection:
            yield from read_events(connection, subject_request_id)

    def counts(self) -> dict[str, int]:
        """How many requests there are of each status."""
        query = select(REQUESTS.c.status, func.count()).group_by(REQUESTS.c.status)
        with self.database.reading() as connection:
            found = {status: int(number) for status, number in connection.execute(query)}
        return {status: found.get(status, 0) for status in STATUSES}

    def cancel(self, subject_request_id: str, reason: str) -> DeletionRequest:
        """Withdraw a request, for the person who made it."""
        return self._close(subject_request_id, "cancelled", reason, OPEN)

    def deny(self, subject_request_id: str, reason: str) -> DeletionRequest:
        """Refuse a request, with the reason in writing; do not name the person in it."""
        return self._close(subject_request_id, "denied", reason, OPEN)

    def reopen(self, subject_request_id: str) -> DeletionRequest:
        """Let a request that stopped, or was denied by mistake, be tried again: by another policy, or finder, say."""
        return self._change(
            subject_request_id, Entry("reopened", {}, subject_request_id), ("requires_retraining", "pending", "denied")
        )

    def preview(self, subject_request_id: str, task: Task, *, finders: Mapping[str, Finder] | None = None) -> Preview:
        """Say what a request will do, before anything happens: which samples, and what to expect of the model."""
        from excise.ledger.previewing import preview_request

        return preview_request(self, task, subject_request_id, finders=finders)

    def process(
        self,
        task: Task,
        policy: Policy | None = None,
        *,
        finders: Mapping[str, Finder] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> Processed:
        """Carry out all requests that wait, each exactly once; for many runs in a row keep a ``Worker``.

        Args:
            task: The model as it was trained, its loss and its data.
            policy: How requests are carried out, and when they stop; None for the default method.
            finders: How a subject's samples are found, by type of identity: ``"keys"``, a column, or a function.
            tell: Is told what happens, in words.
        """
        from excise.ledger.processing import Worker

        return Worker(self, task, policy, finders=finders, tell=tell).run()

    def verify(self) -> Verification:
        """Check that nothing was altered, removed or inserted, and that nothing is left over past its date."""
        from excise.ledger.verification import verify_ledger

        return verify_ledger(self)

    def lineage(self) -> list[Version]:
        """All versions of the model, the first one first."""
        from excise.ledger.versions import all_versions

        with self.database.reading() as connection:
            return list(all_versions(connection))

    def certificate(self, subject_request_id: str) -> str:
        """The signed certificate of a completed request, or of the earlier one that answered it."""
        with self.database.reading() as connection:
            found = self._find(connection, [subject_request_id])[0]
            about = found.answered_by or subject_request_id
            query = select(CERTIFICATES.c.text).where(CERTIFICATES.c.subject_request_id == about)
            text = connection.execute(query).scalar()
        if text is None:
            raise InputError(
                f"request {subject_request_id} has no certificate: it is {found.status}; one is written on completion."
            )
        return str(text)

    @contextlib.contextmanager
    def writing(
        self, author: str | None = None
    ) -> Iterator[tuple[Connection, Callable[[Sequence[Entry]], list[Event]]]]:
        """A transaction, and the function that records events in it with all that follows from them."""
        with self.database.writing() as connection:
            head_of(connection)  # all writers wait for each other here, so that what one has read stays so

            def record(entries: Sequence[Entry]) -> list[Event]:
                made = append(connection, entries, author or self.author, self.clock(), self.seal)
                project(connection, made)
                return made

            yield connection, record

    def seal(self, message: bytes) -> str:
        """An HMAC that shows that something was written under this ledger's key."""
        return self.keys.hmac_of("seal", message).hex()

    def _admitted_folder(self, folder: str | Path | None) -> Path:
        if folder is not None:
            return Path(folder).resolve()
        if self.database.file is None:
            raise InputError("folder must be given for a ledger on a server: model versions and keys are kept there.")
        return folder_beside(self.database.file)

    def _is_there(self) -> bool:
        file = self.database.file
        return (file is None or file.exists()) and bool(self.database.tables())

    def _checked(self) -> tuple[str, str]:
        """The ledger's id and public key, if the keys are its own."""
        with self.database.reading() as connection:
            row = connection.execute(select(LEDGERS)).one()
        if row.key_check != key_check(self.keys, row.ledger_id):
            raise InputError(f"{self.folder / 'keys'}: holds the key of another ledger than {self.database.shown}.")
        if row.public_key != self.keys.public_key.hex():
            raise InputError(f"{self.folder / 'keys'}: the signing key is not that of the ledger; restore it.")
        require_folder_of(self.folder, row.ledger_id, self.database.shown)
        return str(row.ledger_id), str(row.public_key)

    def _received(self, one: Submission, today: datetime) -> Entry:
        received = one.received_time or today
        due = one.due_date or one_month_after(received)
        hashed = sorted([each.identity_type, digest(each, self.keys.hmac_of)] for each in one.subject_identities)
        body: dict[str, Any] = {"identities": hashed, "received_time": written(received), "due_date": written(due)}
        body["seal"] = seal_of_request(one.subject_request_id, hashed, written(received), written(due), self.seal)
        return Entry("received", body, one.subject_request_id)

    def _known(self, connection: Connection, names: list[str], entries: dict[str, Entry]) -> set[str]:
        """Those of the requests that are in the ledger already; an error where one is of another subject."""
        found: dict[str, list[list[str]]] = {}
        for start in range(0, len(names), AT_ONCE):
            query = select(IDENTITIES.c.subject_request_id, IDENTITIES.c.identity_type, IDENTITIES.c.digest)
            some = query.where(IDENTITIES.c.subject_request_id.in_(names[start : start + AT_ONCE]))
            for name, kind, hashed in connection.execute(some.order_by(IDENTITIES.c.place)):
                found.setdefault(name, []).append([kind, hashed])
        for name, identities in found.items():
            if identities != entries[name].body["identities"]:
                raise _other_request(name)
        return set(found)

    def _find(self, connection: Connection, names: list[str]) -> list[DeletionRequest]:
        """Requests by id, in the order of the ids."""
        found: dict[str, DeletionRequest] = {}
        for start in range(0, len(names), AT_ONCE):
            some = REQUESTS.c.subject_request_id.in_(names[start : start + AT_ONCE])
            rows = connection.execute(select(REQUESTS).where(some)).mappings().all()
            found |= {one.subject_request_id: one for one in self._with_identities(connection, rows)}
        for name in names:
            if name not in found:
                raise InputError(f"the ledger has no request {name!r:.140}; excise requests list shows all.")
        return [found[name] for name in names]

    def _with_identities(self, connection: Connection, rows: Sequence[RowMapping]) -> list[DeletionRequest]:
        query = select(IDENTITIES.c.subject_request_id, IDENTITIES.c.identity_type).order_by(IDENTITIES.c.place)
        names = [row["subject_request_id"] for row in rows]
        types: dict[str, list[str]] = {}
        for name, kind in connection.execute(query.where(IDENTITIES.c.subject_request_id.in_(names))):
            types.setdefault(name, []).append(kind)
        today = self.clock()
        return [request_of(row, tuple(types.get(row["subject_request_id"], ())), today) for row in rows]

    def _close(self, name: str, kind: str, reason: str, allowed: tuple[str, ...]) -> DeletionRequest:
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"reason must say why the request is {kind}; the law asks for it in writing.")
        return self._change(name, Entry(kind, {"reason": reason.strip()}, name), allowed)

    def _change(self, name: str, entry: Entry, allowed: tuple[str, ...]) -> DeletionRequest:
        with self.writing() as (connection, record):
            query = select(REQUESTS.c.status).where(REQUESTS.c.subject_request_id == name)
            status = connection.execute(query.with_for_update()).scalar()
            if status is None:
                raise InputError(f"the ledger has no request {name!r:.140}; excise requests list shows all.")
            if status not in allowed:
                raise InputError(
                    f"request {name} is {status}; only one that is {' or '.join(allowed)} can be {entry.kind}."
                )
            record([entry])
            return self._find(connection, [name])[0]


def _require_possible_times(one: Submission, today: datetime) -> None:
    """Refuse times that a new request can't have; one that is there already may be sent again at any time."""
    name, received, due = one.subject_request_id, one.received_time, one.due_date
    if received is not None and received > today:
        raise InputError(f"received_time {written(received)} of {name} is still to come.")
    if due is not None and due < today:
        raise InputError(f"due_date {written(due)} of {name} is in the past; name a day to come.")


def _other_request(name: str) -> InputError:
    return InputError(
        f"subject_request_id {name} is there already, for another subject; an id stands for one request: take another."
    )


def _admitted_author(author: Any) -> str:
    if not isinstance(author, str) or not 0 < len(author.strip()) <= LONGEST_AUTHOR or not author.isprintable():
        raise InputError(f"author must be a name of at most {LONGEST_AUTHOR} characters, not {author!r:.140}.")
    return author.strip()
