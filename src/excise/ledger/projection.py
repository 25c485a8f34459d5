"""What follows from an event: the rows that it adds or changes in the tables that answer questions.

The ledger writes by these rules, and its verification follows them again from the first event on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, insert, update

from excise.ledger.events import Event
from excise.ledger.schema import ARTEFACTS, DELETED, IDENTITIES, LEDGERS, REQUESTS, VERSIONS

OPEN = ("pending", "in_progress")
Rule = Callable[[Connection, list[Event]], None]


def project(connection: Connection, events: Iterable[Event]) -> None:
    """Bring the tables up to date with events, in their order; like ones that follow each other go together."""
    for kind, group in groupby(events, key=lambda one: one.kind):
        rule = RULES.get(kind)
        if rule is not None:
            rule(connection, list(group))


def _received(connection: Connection, events: list[Event]) -> None:
    requests: list[dict[str, Any]] = []
    identities: list[dict[str, Any]] = []
    for event in events:
        body = event.values
        requests.append(
            {
                "subject_request_id": event.subject_request_id,
                "number": event.number,
                "status": "pending",
                "received_time": body["received_time"],
                "due_date": body["due_date"],
                "alone": False,
                "attempts": 0,
            }
        )
        for place, (kind, digest) in enumerate(body["identities"]):
            about = {"subject_request_id": event.subject_request_id, "place": place}
            identities.append({**about, "identity_type": kind, "digest": digest})
    connection.execute(insert(REQUESTS), requests)
    connection.execute(insert(IDENTITIES), identities)


def _each(values: Callable[[Event, dict[str, Any]], dict[str, Any]]) -> Rule:
    """A rule that changes the row of each event's request."""

    def rule(connection: Connection, events: list[Event]) -> None:
        for event in events:
            statement = update(REQUESTS).where(REQUESTS.c.subject_request_id == event.subject_request_id)
            connection.execute(statement.values(values(event, event.values)))

    return rule


def _version(connection: Connection, events: list[Event]) -> None:
    for event in events:
        body = event.values
        leaves = body.pop("deleted")
        row = {**body, "record": json.dumps(body["record"], sort_keys=True), "made_time": event.time}
        connection.execute(insert(VERSIONS), row)
        deleted = [
            {"leaf": leaf, "subject_request_id": about, "version": body["version"]}
            for about, some in sorted(leaves.items())
            for leaf in some
        ]
        if deleted:
            connection.execute(insert(DELETED), deleted)
        connection.execute(update(LEDGERS).values(head_version=body["version"]))


def _registered(connection: Connection, events: list[Event]) -> None:
    connection.execute(insert(ARTEFACTS), [{"number": event.number, **event.values} for event in events])


def _purged(connection: Connection, events: list[Event]) -> None:
    for event in events:
        body = event.values
        table, named = (VERSIONS, "version") if "version" in body else (ARTEFACTS, "number")
        connection.execute(update(table).where(table.c[named] == body[named]).values(purged_time=event.time))


def _started(*_: Any) -> dict[str, Any]:
    return {"status": "in_progress", "next_attempt_time": None}


def _failed(_: Event, body: dict[str, Any]) -> dict[str, Any]:
    return {"status": "pending", **body}


def _closed(event: Event, body: dict[str, Any]) -> dict[str, Any]:
    return {"status": event.kind, "completed_time": event.time, "error": None, "reason": body.get("reason")}


def _completed(event: Event, body: dict[str, Any]) -> dict[str, Any]:
    answer = {"version": body.get("version"), "answered_by": body.get("answered_by")}
    return {**_closed(event, body), **answer}


def _stopped(event: Event, body: dict[str, Any]) -> dict[str, Any]:
    return {"status": event.kind, "reason": body["reason"], "error": None}


def _reopened(*_: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("next_attempt_time", "error", "reason", "completed_time"))
    return {"status": "pending", "attempts": 0, **nothing}


def _set_apart(*_: Any) -> dict[str, Any]:
    return {"alone": True}


RULES: dict[str, Rule] = {
    "received": _received,
    "started": _each(_started),
    "set_apart": _each(_set_apart),
    "failed": _each(_failed),
    "completed": _each(_completed),
    "denied": _each(_closed),
    "cancelled": _each(_closed),
    "requires_retraining": _each(_stopped),
    "reopened": _each(_reopened),
    "version": _version,
    "registered": _registered,
    "purged": _purged,
}
