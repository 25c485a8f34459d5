"""Turns: of all workers one at a time changes the model, the one that has waited longest, and no dead one holds it up.

A worker draws a ticket. Who has the smallest ticket that has not expired has the turn. Tickets are renewed while their
worker lives; an expired one is worth nothing, and its worker has to draw again. Should two workers ever both believe
that it is their turn, as by a clock that jumps, then the later one to commit finds another head version, and fails.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from excise.errors import ExciseError
from excise.ledger.events import canonical, head_of
from excise.ledger.schema import TURNS
from excise.ledger.times import written

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger

LEASE = 30.0  # seconds that a ticket is worth something without being renewed
PAUSE = 0.05  # seconds between looks whether it is one's turn


class TurnLost(ExciseError):
    """A worker was silent for so long that another took over; nothing of its work was written."""


def worker_name() -> str:
    """A name that no other worker has."""
    return f"{platform.node()[:40] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"


class Turns:
    """The tickets of one worker."""

    def __init__(self, ledger: Ledger, worker: str, *, lease: float = LEASE) -> None:
        self._ledger, self._worker, self._lease = ledger, worker, timedelta(seconds=lease)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, have it, and give it back."""
        self._draw()
        with self._renewed():
            while not self._is_mine():
                time.sleep(PAUSE)
            try:
                yield
            finally:
                with contextlib.suppress(ExciseError):  # if the database is gone, the ticket expires
                    self._give_back()

    def require(self, connection: Connection) -> None:
        """Raise ``TurnLost`` unless it is this worker's turn, in the transaction that is under way."""
        head_of(connection)  # waits for whoever writes now
        if self._first(connection) != self._worker:
            raise TurnLost(f"worker {self._worker} was silent for too long, and another has taken over; begin again.")

    def others_wait(self) -> bool:
        """Whether another worker has drawn a ticket, and is alive."""
        query = select(TURNS.c.ticket).where(TURNS.c.worker != self._worker, TURNS.c.until >= self._now()).limit(1)
        with self._ledger.database.reading() as connection:
            return connection.execute(query).scalar() is not None

    def _draw(self) -> None:
        with self._ledger.database.writing() as connection:
            head_of(connection)
            connection.execute(delete(TURNS).where((TURNS.c.worker == self._worker) | (TURNS.c.until < self._now())))
            connection.execute(insert(TURNS).values(worker=self._worker, **self._until()))

    def _give_back(self) -> None:
        with self._ledger.database.writing() as connection:
            connection.execute(delete(TURNS).where(TURNS.c.worker == self._worker))

    def _is_mine(self) -> bool:
        with self._ledger.database.reading() as connection:
            first = self._first(connection)
            own = connection.execute(select(TURNS.c.ticket).where(self._alive())).scalar()
        if own is None:
            self._draw()
        return first == self._worker

    def _first(self, connection: Connection) -> str | None:
        query = select(TURNS.c.worker).where(TURNS.c.until >= self._now()).order_by(TURNS.c.ticket).limit(1)
        return connection.execute(query).scalar()

    def _alive(self) -> ColumnElement[bool]:
        return (TURNS.c.worker == self._worker) & (TURNS.c.until >= self._now())

    @contextmanager
    def _renewed(self) -> Iterator[None]:
        """Renew the ticket from a thread, for as long as this goes on."""
        over = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _renew_until(self, over: threading.Event) -> None:
        while not over.wait(self._lease.total_seconds() / 3):
            try:
                with self._ledger.database.writing() as connection:
                    head_of(connection)
                    connection.execute(update(TURNS).where(self._alive()).values(**self._until()))
            except ExciseError:  # the database does not answer: the next time, or never
                continue

    def _until(self) -> dict[str, str]:
        until = written(self._ledger.clock() + self._lease)
        return {"until": until, "seal": self._ledger.seal(canonical(["turn", self._worker, until]).encode())}

    def _now(self) -> str:
        return written(self._ledger.clock())
