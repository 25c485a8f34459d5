"""A batch of requests: which of a subject's samples are still in the model, and how each request will be answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, or_, select

from excise.errors import ExciseError, InputError
from excise.ledger.events import Entry, Seal
from excise.ledger.schema import DELETED, EVENTS, IDENTITIES, REQUESTS, VERSIONS
from excise.ledger.seals import require_seal_of_request, seal_of_request

if TYPE_CHECKING:
    from datetime import datetime

    from excise.ledger.identities import HmacOf
    from excise.ledger.policy import Policy
    from excise.ledger.subjects import Subjects
    from excise.ledger.training_set import TrainingSet

AT_ONCE = 500
NOBODY = "No sample of this subject is in the training set of the model, by the identities that the request names."


@dataclass(frozen=True)
class Asked:
    """A request that was taken from the queue."""

    subject_request_id: str
    received_time: str
    due_date: str
    attempts: int
    identities: tuple[tuple[str, str], ...]
    """Type and digest of each."""
    status: str
    """Before it was taken."""

    @property
    def resumed(self) -> bool:
        """Whether a worker had begun it, and did not get to its end."""
        return self.status == "in_progress"


@dataclass(frozen=True)
class Answer:
    """How a request will be answered: its samples, or why there are none to delete."""

    asked: Asked
    positions: tuple[int, ...] = ()
    leaves: tuple[str, ...] = ()
    answered_by: str | None = None
    """An earlier request that deleted the samples."""
    denied: str | None = None
    error: str | None = None
    """Why its subject could not be looked for."""


def take(connection: Connection, policy: Policy, now: str, seal: Seal) -> list[Asked]:
    """The requests that are next, in the order in which they are due; the same again if they are not finished."""
    due = or_(REQUESTS.c.next_attempt_time.is_(None), REQUESTS.c.next_attempt_time <= now)
    waiting = (REQUESTS.c.status == "pending") & due & (REQUESTS.c.attempts < policy.attempts)
    query = (
        select(REQUESTS)
        .where(or_(waiting, REQUESTS.c.status == "in_progress"))
        .order_by(REQUESTS.c.due_date, REQUESTS.c.number)
        .limit(policy.batch)
        .with_for_update(skip_locked=True)
    )
    rows = connection.execute(query).mappings().all()
    together = [rows[0]] if rows and rows[0]["alone"] else _until_alone(rows)
    return [_asked(connection, row, seal) for row in together]


def asked_by(connection: Connection, subject_request_id: str, seal: Seal) -> Asked:
    """One request, whatever its status."""
    query = select(REQUESTS).where(REQUESTS.c.subject_request_id == subject_request_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise InputError(f"the ledger has no request {subject_request_id!r:.140}; excise requests list shows all.")
    return _asked(connection, row, seal)


def stopped(connection: Connection, seal: Seal) -> list[Asked]:
    """The requests that only a retraining can answer."""
    query = select(REQUESTS).where(REQUESTS.c.status == "requires_retraining").order_by(REQUESTS.c.number)
    return [_asked(connection, row, seal) for row in connection.execute(query).mappings().all()]


def _until_alone(rows: Sequence[Any]) -> list[Any]:
    end = next((place for place, row in enumerate(rows) if row["alone"]), len(rows))
    return list(rows[:end])


def _asked(connection: Connection, row: Any, seal: Seal) -> Asked:
    """A request from its rows, if these are as they were written under the ledger's key."""
    name = row["subject_request_id"]
    query = select(IDENTITIES.c.identity_type, IDENTITIES.c.digest).where(IDENTITIES.c.subject_request_id == name)
    identities = tuple((kind, digest) for kind, digest in connection.execute(query.order_by(IDENTITIES.c.place)))
    body = connection.execute(select(EVENTS.c.body).where(EVENTS.c.number == row["number"])).scalar()
    expected = seal_of_request(name, identities, row["received_time"], row["due_date"], seal)
    require_seal_of_request(name, json.loads(body or "{}").get("seal"), expected)
    return Asked(name, row["received_time"], row["due_date"], row["attempts"], identities, row["status"])


def are_as_taken(connection: Connection, batch: Sequence[Asked]) -> bool:
    """Whether all of these still wait for their answer, which no one else can give until the transaction is over."""
    for start in range(0, len(batch), AT_ONCE):
        some = {one.subject_request_id: one for one in batch[start : start + AT_ONCE]}
        query = select(REQUESTS.c.subject_request_id, REQUESTS.c.status, REQUESTS.c.attempts)
        chosen = query.where(REQUESTS.c.subject_request_id.in_(list(some))).order_by(REQUESTS.c.subject_request_id)
        for name, status, attempts in connection.execute(chosen.with_for_update()):
            taken = "requires_retraining" if some[name].status == "requires_retraining" else "in_progress"
            if (status, attempts) != (taken, some[name].attempts):
                return False
    return True


def begun(batch: Sequence[Asked], worker: str) -> list[Entry]:
    """The events by which requests are taken."""
    return [Entry("resumed" if one.resumed else "started", {"worker": worker}, one.subject_request_id) for one in batch]


def answers_to(
    batch: Sequence[Asked], subjects: Subjects, training_set: TrainingSet, connection: Connection, hmac_of: HmacOf
) -> list[Answer]:
    """Look up each subject's samples; those that an earlier request has, of this batch or before, are its own."""
    found: list[Answer] = []
    taken: dict[int, str] = {}
    for asked in batch:
        answer = _answer(asked, subjects, training_set, connection, hmac_of, taken)
        taken |= dict.fromkeys(answer.positions, asked.subject_request_id)
        found.append(answer)
    return found


def _answer(
    asked: Asked,
    subjects: Subjects,
    training_set: TrainingSet,
    connection: Connection,
    hmac_of: HmacOf,
    taken: dict[int, str],
) -> Answer:
    try:
        found = subjects.find(asked.identities, hmac_of)
        owned = sorted({place for places in found.values() for place in places})
    except ExciseError as error:
        return Answer(asked, error=str(error))
    except Exception as error:  # of the data set's own code
        return Answer(asked, error=f"{kind_of(error)}, when the subject was looked for")
    left = [place for place in owned if place not in training_set.gone and place not in taken]
    if left:
        return Answer(asked, tuple(left), tuple(training_set.leaves_of(left)))
    earlier = next((taken[place] for place in owned if place in taken), None) or _earlier(
        connection, asked, training_set.leaves_of(owned)
    )
    return Answer(asked, answered_by=earlier) if earlier else Answer(asked, denied=NOBODY)


def _earlier(connection: Connection, asked: Asked, leaves: Sequence[str]) -> str | None:
    """The last request that deleted some of these samples, or one of the same subject where the rows are gone.

    After the last one none of them was retained, as its certificate shows.
    """
    if leaves:
        found: list[tuple[int, str]] = []
        for start in range(0, len(leaves), AT_ONCE):
            by_leaf = (
                select(VERSIONS.c.number, DELETED.c.subject_request_id)
                .join(VERSIONS, VERSIONS.c.version == DELETED.c.version)
                .where(DELETED.c.leaf.in_(leaves[start : start + AT_ONCE]))
                .order_by(VERSIONS.c.number.desc(), DELETED.c.subject_request_id.desc())
                .limit(1)
            )
            found += [(number, name) for number, name in connection.execute(by_leaf)]
        return max(found)[1] if found else None
    same = (
        select(func.coalesce(REQUESTS.c.answered_by, REQUESTS.c.subject_request_id))
        .join(IDENTITIES, IDENTITIES.c.subject_request_id == REQUESTS.c.subject_request_id)
        .where(IDENTITIES.c.digest.in_([digest for _, digest in asked.identities]))
        .where(REQUESTS.c.status == "completed")
        .order_by(REQUESTS.c.number.desc())
        .limit(1)
    )
    return connection.execute(same).scalar()


def kind_of(error: Exception) -> str:
    """What an error is, without its words.

    >>> kind_of(OSError("ann.png")), kind_of(RuntimeError("ann"))
    ('an OSError', 'a RuntimeError')
    """
    name = type(error).__name__
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def next_attempt(asked: Asked, error: str, now: datetime) -> Entry:
    """The event of an attempt that failed: the next one comes later and later."""
    from datetime import timedelta

    from excise.ledger.times import written

    pause = timedelta(minutes=2 ** min(asked.attempts, 10))
    body = {"attempts": asked.attempts + 1, "error": error, "next_attempt_time": written(now + pause)}
    return Entry("failed", body, asked.subject_request_id)
