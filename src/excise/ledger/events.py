"""The chain of events: everything that ever changed in a ledger, each event bound to the one before it by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from excise.errors import InputError
from excise.ledger.schema import EVENTS, LEDGERS
from excise.ledger.times import TOLERANCE, read_time, written

FIRST = "0" * 64  # what the first event follows
AT_ONCE = 1000
Seal = Callable[[bytes], str]
"""Makes an HMAC, under the ledger's key, of what must not be changed without it."""


@dataclass(frozen=True)
class Entry:
    """Something that happens, before it is written down."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    subject_request_id: str | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    number: int
    time: str
    author: str
    kind: str
    subject_request_id: str | None
    body: str
    """JSON."""
    previous: str
    hash: str

    @property
    def values(self) -> dict[str, Any]:
        """The body, read."""
        return dict(json.loads(self.body))

    def computed_hash(self) -> str:
        """What the hash must be."""
        return _hash(self.number, self.time, self.author, self.kind, self.subject_request_id, self.body, self.previous)


@dataclass(frozen=True)
class Head:
    """The end of the chain."""

    events: int
    hash: str

    def sealed(self, seal: Seal) -> str:
        """What shows that this end was written by someone who has the key."""
        return seal(canonical(["head", self.events, self.hash]).encode())


def canonical(value: Any) -> str:
    """JSON in the one form that is hashed.

    >>> canonical({"b": 1, "a": [None, "é"]})
    '{"a":[null,"\\\\u00e9"],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def head_of(connection: Connection) -> Head:
    """The end of the chain, which no one else can write to until this transaction is over, if it writes."""
    row = connection.execute(select(LEDGERS.c.events, LEDGERS.c.head).with_for_update()).one()
    return Head(row.events, row.head)


def require_seal(connection: Connection, head: Head, seal: Seal) -> None:
    """Refuse to build on an end that was not written under the ledger's key."""
    if connection.execute(select(LEDGERS.c.seal)).scalar_one() != head.sealed(seal):
        raise InputError(
            "the end of the ledger's events was altered, so that nothing is added to it; excise requests verify says "
            "what is wrong, and a backup has it right."
        )


def append(connection: Connection, entries: Sequence[Entry], author: str, now: datetime, seal: Seal) -> list[Event]:
    """Write events at the end of the chain, in the transaction that is under way."""
    if not entries:
        return []
    head = head_of(connection)
    require_seal(connection, head, seal)
    time = _time_after(connection, head, now)
    made = chained(head, entries, author, time)
    for start in range(0, len(made), AT_ONCE):
        connection.execute(insert(EVENTS), [vars(one) for one in made[start : start + AT_ONCE]])
    end = Head(made[-1].number, made[-1].hash)
    connection.execute(update(LEDGERS).values(events=end.events, head=end.hash, seal=end.sealed(seal)))
    return made


def chained(head: Head, entries: Iterable[Entry], author: str, time: str) -> list[Event]:
    """Events that follow a head, one after the other."""
    made: list[Event] = []
    number, previous = head.events, head.hash
    for entry in entries:
        number, body = number + 1, canonical(entry.body)
        digest = _hash(number, time, author, entry.kind, entry.subject_request_id, body, previous)
        made.append(Event(number, time, author, entry.kind, entry.subject_request_id, body, previous, digest))
        previous = digest
    return made


def read_events(connection: Connection, subject_request_id: str | None = None) -> Iterator[Event]:
    """All events in their order, or those of one request; a part of them in memory at a time."""
    query = select(EVENTS).order_by(EVENTS.c.number)
    if subject_request_id is not None:
        query = query.where(EVENTS.c.subject_request_id == subject_request_id)
    for row in connection.execution_options(yield_per=AT_ONCE).execute(query):
        yield Event(*row)


def _hash(number: int, time: str, author: str, kind: str, about: str | None, body: str, previous: str) -> str:
    return hashlib.sha256(canonical([number, time, author, kind, about, body, previous]).encode()).hexdigest()


def _time_after(connection: Connection, head: Head, now: datetime) -> str:
    """The time of new events: never before that of the last one, and nearly this clock's."""
    last = connection.execute(select(EVENTS.c.time).where(EVENTS.c.number == head.events)).scalar()
    if last is None:
        return written(now)
    if now < read_time(last) - TOLERANCE:
        raise InputError(
            f"the clock went back: it reads {written(now)}, and the ledger's last event is of {last}; set the clock, "
            "since deadlines and the order of events rest on it. Nothing was changed."
        )
    return max(written(now), str(last))
