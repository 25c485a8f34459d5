"""A ledger's database: SQLite or PostgreSQL, opened so that what is committed stays, with errors in plain words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from excise._support.reading import reason
from excise.errors import InputError, MissingExtraError

try:
    from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
except ImportError:
    raise MissingExtraError("a ledger needs SQLAlchemy: pip install 'excise[ledger]'") from None

PATIENCE = 60  # seconds to wait for another process that writes
DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
ADVISORY = 0x65786369736531  # a lock of PostgreSQL that makes new tables, and nothing else, wait


class Database:
    """A connection to where a ledger is."""

    def __init__(self, url: str | Path) -> None:
        self.url = admitted_url(url)
        self.shown = self.url.render_as_string(hide_password=True)
        try:
            self.engine: Engine = create_engine(self.url, **_options(self.url))
        except (ArgumentError, NoSuchModuleError) as error:
            raise InputError(f"{self.shown}: no database can be opened by this URL ({reason(error)}).") from None
        except ImportError:
            raise MissingExtraError("PostgreSQL needs psycopg: pip install 'excise[postgresql]'") from None
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file here, rather than a server."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database."""
        return Path(self.url.database or "").resolve() if self.is_sqlite else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the ledger throughout."""
        with self.naming(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes: all of it, or nothing."""
        with self.naming(), self.engine.connect() as connection:
            connection = connection.execution_options(writing=True)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Say what is wrong with the database in the user's words."""
        try:
            yield
        except DBAPIError as error:
            raise InputError(f"{self.shown}: {_in_words(error)}") from None
        except SQLAlchemyError as error:
            raise InputError(f"{self.shown}: the database could not be used ({reason(error)}).") from None
        except (UnicodeDecodeError, sqlite3.DatabaseError):  # of a file whose names of tables, or more, are no text
            raise InputError(f"{self.shown}: {_MEANINGS['malformed']}") from None
        except UnicodeEncodeError:  # halves of characters, as the shell makes of bytes that are no UTF-8
            raise InputError(f"{self.shown}: a name or a reason is not text in UTF-8; write it otherwise.") from None

    def tables(self) -> set[str]:
        """Names of the tables that are there."""
        with self.reading() as connection:
            return set(inspect(connection).get_table_names())

    def lock_for_new_tables(self, connection: Connection) -> None:
        """Wait until no other process makes tables here."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY})


def admitted_url(url: str | Path) -> URL:
    """A URL of a database; a plain path is an SQLite file."""
    if isinstance(url, Path) or (isinstance(url, str) and url and "://" not in url):
        _require_file(str(url))
        return URL.create(DRIVERS["sqlite"], database=str(url))  # as it is: in a URL ? and % mean something
    if not isinstance(url, str) or not url:
        raise InputError(f"url must be a file or a database's URL such as sqlite:///requests.db, not {url!r:.80}.")
    try:
        made = make_url(url)
        known = DRIVERS.get(made.get_backend_name())
    except (ArgumentError, ValueError):
        raise InputError("url can't be read as a URL; write sqlite:///requests.db or postgresql://host/name.") from None
    if known is None:
        raise InputError(f"url is of {made.get_backend_name()!r:.40}; a ledger is kept in sqlite or postgresql.")
    if known.startswith("sqlite"):
        _require_file(made.database)
    return made.set(drivername=known)


def _require_file(name: str | None) -> None:
    if not name or name == ":memory:" or name.startswith("file:") or "\0" in name:
        raise InputError(f"url names no file ({name!r:.60}); a ledger must last: write sqlite:///requests.db.")
    file = Path(name)
    if file.is_dir() or (file.exists() and not file.is_file()):
        raise InputError(f"url {name}: is a folder, pipe or device; name a file.")
    if not file.resolve().parent.is_dir():
        raise InputError(f"url {name}: there is no folder {file.resolve().parent}.")


def _options(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": PATIENCE, "check_same_thread": False}}
    return {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says, not where Python guesses
    for setting in ("foreign_keys = ON", "synchronous = FULL", f"busy_timeout = {PATIENCE * 1000}"):
        connection.execute(f"PRAGMA {setting}")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        with contextlib.suppress(sqlite3.OperationalError):  # of a file that can be read only: it stays as it is
            connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    """Writers take their lock at once, so that none finds at its end that another was quicker."""
    writes = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _in_words(error: DBAPIError) -> str:
    """What an error of the driver means, and what to do; statements and their values are never shown."""
    said = str(error.orig).strip().splitlines()[0] if error.orig is not None else type(error).__name__
    low = said.lower()
    for sign, words in _MEANINGS.items():
        if sign in low:
            return words
    return f"the database could not be used ({said[:200]})."


_MEANINGS = {
    "database is locked": f"another process has held the ledger for {PATIENCE} s; is it stuck? End it, and try again.",
    "readonly": "the ledger can't be written to; make the file and its folder writable for this user.",
    "read-only": "the ledger can't be written to; the server, or the user's rights, allow reading alone.",
    "permission denied": "the database's user may not do this; give it rights on the ledger's tables.",
    "disk is full": "the disk is full; nothing was changed. Make room, and try again.",
    "no space left": "the disk is full; nothing was changed. Make room, and try again.",
    "not a database": "is no SQLite database, or is damaged; restore it from a backup.",
    "malformed": "the database is damaged; restore it from a backup.",
    "disk i/o error": "the disk could not be read or written; is it full, or gone? Nothing was changed.",
    "unable to open": "the database file can't be opened; may this user read it, and write to its folder?",
    "authentication failed": "the database's server refuses this user or password.",
    "connection refused": "the database's server does not answer; is it running, and is the address right?",
    "connection failed": "the database's server does not answer; is it running, and is the address right?",
    "no such table": "the database lacks a table of the ledger; it is damaged, or no ledger.",
    "does not exist": "the database lacks a table of the ledger; it is damaged, or no ledger.",
}


def folder_beside(file: Path) -> Path:
    """Where the files of a ledger in an SQLite file are.

    >>> folder_beside(Path("/data/requests.db")).as_posix()
    '/data/requests.files'
    """
    return file.with_name(f"{file.stem}.files")


def require_private_file(file: Path) -> None:
    """Make a new database for its owner's eyes only, before anything is written to it."""
    if not file.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
