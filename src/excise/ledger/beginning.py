"""How a ledger comes to be, and how one of an earlier version is brought up to date."""

from __future__ import annotations

import getpass
import uuid
from datetime import datetime
from pathlib import Path

from sqlalchemy import insert

from excise._support.files import naming, write_whole
from excise.errors import InputError
from excise.ledger import migrations
from excise.ledger.database import Database, folder_beside, require_private_file
from excise.ledger.events import FIRST, Entry, Head, Seal, append
from excise.ledger.keys import LedgerKeys
from excise.ledger.schema import LEDGERS
from excise.ledger.times import now

WHOSE = "ledger.id"  # a file that says whose a folder is


def begin_ledger(database: Database, folder: Path, author: str, time: datetime) -> None:
    """Make keys and tables; of two processes that begin the same ledger, the second finds it made."""
    if database.file is not None:
        require_private_file(database.file)
    keys = _keys_in(folder)
    with database.writing() as connection:
        database.lock_for_new_tables(connection)
        if migrations.present(connection) is not None:
            return
        require_folder_of(folder.parent, None, database.shown)
        migrations.upgrade(connection)
        name, head, seal = str(uuid.uuid4()), Head(0, FIRST), _seal_by(keys)
        own = {"ledger_id": name, "key_check": key_check(keys, name), "public_key": keys.public_key.hex()}
        row = {"place": 1, **own, "events": head.events, "head": head.hash, "seal": head.sealed(seal)}
        connection.execute(insert(LEDGERS), row)
        append(connection, [Entry("created", own)], author, time, seal)
    write_whole(folder.parent / WHOSE, f"{name}\n")


def require_folder_of(folder: Path, ledger_id: str | None, shown: str) -> None:
    """Refuse the folder of another ledger, whose keys and model versions must not get mixed up with this one's.

    Args:
        folder: Where files go.
        ledger_id: Of the ledger; None for one that is about to begin.
        shown: The ledger's database, to be named in errors.
    """
    file = folder / WHOSE
    with naming(file):
        found = file.read_text("utf-8", "replace").strip() if file.exists() else None
    if found is not None and found != ledger_id:
        raise InputError(
            f"{folder}: holds the files of another ledger ({found[:40]!r}) than {shown}. If its database is lost, "
            "restore it from a backup; else name another folder."
        )


def upgrade_ledger(url: str | Path, *, folder: str | Path | None = None) -> tuple[str, str]:
    """Bring the tables of an earlier version up to date; gives the versions before and after."""
    database = Database(url)
    place = Path(folder) if folder is not None else None if database.file is None else folder_beside(database.file)
    if place is None:
        raise InputError("folder must be given for a ledger on a server: its keys are there.")
    if database.file is not None and not database.file.exists():
        raise InputError(f"{database.shown}: there is no ledger.")
    keys = LedgerKeys.read(place / "keys")
    with database.writing() as connection:
        before = migrations.present(connection)
        if before is None:
            raise InputError(f"{database.shown}: holds no ledger.")
        migrations.upgrade(connection)
        after = migrations.newest()
        if before != after:
            entry = Entry("upgraded", {"before": before, "after": after})
            append(connection, [entry], system_user(), now(), _seal_by(keys))
    database.engine.dispose()
    return before, after


def key_check(keys: LedgerKeys, ledger_id: str) -> str:
    """What tells whether keys are those of a ledger."""
    return keys.hmac_of("seal", f"key of {ledger_id}".encode()).hex()


def system_user() -> str:
    """Who is at work, as the system has it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without users
        return "unknown"


def _seal_by(keys: LedgerKeys) -> Seal:
    return lambda message: keys.hmac_of("seal", message).hex()


def _keys_in(folder: Path) -> LedgerKeys:
    """The keys that are there, or new ones; of two processes that begin one wins."""
    if not folder.exists():
        try:
            return LedgerKeys.make(folder)
        except InputError:
            if not folder.exists():  # no one was quicker: the disk is full, say
                raise
    return LedgerKeys.read(folder)
