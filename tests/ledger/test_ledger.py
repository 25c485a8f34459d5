"""Requests come in, are found again, and change their status only as they may."""

import errno
import multiprocessing
import os
import sqlite3
import stat

import pytest
from sqlalchemy import text

from excise.errors import InputError
from excise.ledger import migrations
from excise.ledger.beginning import upgrade_ledger
from excise.ledger.database import Database
from excise.ledger.identities import Identity, Submission
from excise.ledger.keys import LedgerKeys
from excise.ledger.ledger import Ledger
from excise.ledger.schema import METADATA, REQUESTS


def test_a_request_is_due_a_month_after_it_came(ledger):
    found = ledger.submit("ann", received_time="2026-01-31T10:00:00+01:00", subject_request_id="r-1")
    assert (found.received_time, found.due_date) == ("2026-01-31T09:00:00.000000Z", "2026-02-28T09:00:00.000000Z")
    assert (found.status, found.days_left, found.is_late) == ("pending", -1, True)
    assert found == ledger.request("r-1")


def test_the_same_id_gives_the_same_answer(ledger, clock):
    first = ledger.submit([Identity("email", "ann@example.org"), Identity("key", "ann")], subject_request_id="r-1")
    clock.pass_days(3)
    again = ledger.submit([Identity("key", "ann"), Identity("email", "ann@example.org")], subject_request_id="r-1")
    assert again.received_time == first.received_time
    assert again.identity_types == ("email", "key")
    assert [one.kind for one in ledger.events()] == ["created", "received"]


def test_a_request_may_be_sent_again_after_it_was_due(ledger, clock):
    due = "2026-03-05T00:00:00Z"
    first = ledger.submit("ann", subject_request_id="r-1", due_date=due)
    clock.pass_days(10)
    again = ledger.submit("ann", subject_request_id="r-1", due_date=due)
    assert (again.due_date, again.days_left) == (first.due_date, -6)
    with pytest.raises(InputError, match="is in the past"):
        ledger.submit("ann", subject_request_id="r-2", due_date=due)


@pytest.mark.parametrize("subject", [5, None, b"ann", [b"ann"], [], {}])
def test_who_is_no_one_is_refused(ledger, subject):
    with pytest.raises(InputError, match="subject"):
        ledger.submit(subject)
    assert not list(ledger.requests())


def test_text_that_is_none_is_refused(ledger):
    """Bytes that are no UTF-8, as a shell hands them over."""
    ledger.submit("ann", subject_request_id="r-1")
    half = os.fsdecode(b"\xff")
    for call in (lambda: ledger.request(half), lambda: list(ledger.events(half)), lambda: ledger.deny("r-1", half)):
        with pytest.raises(InputError, match="is not text in UTF-8"):
            call()
    assert ledger.request("r-1").status == "pending"


@pytest.mark.parametrize("name", ["a?b=c.db", "50%41#.db"])
def test_a_path_is_taken_as_it_is(tmp_path, clock, name):
    for place in (tmp_path / name, str(tmp_path / name)):
        Ledger(place, clock=clock).close()
    assert (tmp_path / name).is_file()


def test_an_id_stands_for_one_subject(ledger):
    ledger.submit("ann", subject_request_id="r-1")
    with pytest.raises(InputError, match="r-1 is there already, for another subject"):
        ledger.submit("bob", subject_request_id="r-1")
    both = [Submission("r-2", (Identity("key", name),)) for name in ("ann", "bob")]
    with pytest.raises(InputError, match="r-2 is there already"):
        ledger.submit_all(both)
    assert [one.subject_request_id for one in ledger.requests()] == ["r-1"]


def test_many_are_taken_in_or_none(ledger):
    names = [f"r-{number}" for number in range(1200)]
    ledger.submit_all(Submission(name, (Identity("key", f"person {name[2:]}"),)) for name in names)
    assert [one.subject_request_id for one in ledger.requests()] == names  # due at the same time: in their order
    assert len(list(ledger.requests("pending", limit=7))) == 7
    assert ledger.counts()["pending"] == 1200


def test_what_is_due_first_comes_first(ledger, clock):
    ledger.submit("ann", subject_request_id="late", due_date=clock().replace(year=2027))
    ledger.submit("bob", subject_request_id="soon", due_date=clock().replace(month=4))
    assert [one.subject_request_id for one in ledger.requests()] == ["soon", "late"]
    assert [one.subject_request_id for one in ledger.requests(due_within=40)] == ["soon"]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"due_date": "2026-02-01T00:00:00Z"}, "is in the past"),
        ({"received_time": "2027-01-01T00:00:00Z"}, "still to come"),
        ({"received_time": "2026-01-01T00:00:00"}, "has no zone"),
        ({"received_time": "yesterday"}, "must be a time such as"),
        ({"received_time": "2026-02-01T00:00:00Z", "due_date": "2026-01-01T00:00:00Z"}, "due_date"),
    ],
)
def test_times_that_cannot_be_are_refused(ledger, times, words):
    with pytest.raises(InputError, match=words):
        ledger.submit("ann", **times)
    assert not list(ledger.requests())


def test_nothing_of_the_subject_is_kept(ledger, tmp_path):
    ledger.submit([Identity("email", "ann.lovelace@example.org"), Identity("key", "customer-4711")])
    kept = [str(value) for one in ledger.events() for value in vars(one).values()]
    with ledger.database.reading() as connection:
        for table in METADATA.sorted_tables:
            kept += [str(value) for row in connection.execute(table.select()) for value in row]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in ("lovelace", "4711"):
        assert not [value for value in kept if secret in value]
        assert not [content for content in files if secret.encode() in content]
    assert "4711" not in repr(Identity("key", "customer-4711"))


def test_a_request_is_denied_with_a_reason(ledger):
    ledger.submit("ann", subject_request_id="r-1")
    with pytest.raises(InputError, match="reason must say why"):
        ledger.deny("r-1", "  ")
    found = ledger.deny("r-1", "not the person that they say they are")
    assert (found.status, found.reason, found.days_left) == ("denied", "not the person that they say they are", None)
    for change in (ledger.deny, ledger.cancel):
        with pytest.raises(InputError, match="r-1 is denied; only one that is pending"):
            change("r-1", "once more")
    assert [one.kind for one in ledger.events("r-1")] == ["received", "denied"]
    with pytest.raises(InputError, match="has no certificate: it is denied"):
        ledger.certificate("r-1")


@pytest.mark.parametrize("call", ["request", "certificate", "reopen"])
def test_an_unknown_request_is_said_to_be_so(ledger, call):
    with pytest.raises(InputError, match="no request 'r-9'"):
        getattr(ledger, call)("r-9")


def test_events_name_who_did_it(url, tmp_path, ledger, clock):
    ledger.submit("ann", subject_request_id="r-1")
    Ledger(url, folder=tmp_path / "files", author="second officer", clock=clock).cancel("r-1", "withdrawn")
    assert [one.author for one in ledger.events("r-1")] == ["officer", "second officer"]


def test_a_clock_that_went_back_is_refused(ledger, clock):
    ledger.submit("ann")
    clock.time = clock.time.replace(year=2025)
    with pytest.raises(InputError, match="the clock went back"):
        ledger.submit("bob")
    assert ledger.counts()["pending"] == 1


def begin(url, folder, gate, answers):
    """In a process of its own, at the same time as others."""
    gate.wait(60)
    answers.put(Ledger(url, folder=folder).id)


def test_a_ledger_is_begun_once_by_many_processes(url, tmp_path):
    context = multiprocessing.get_context("fork")  # which need not import everything again
    gate, answers = context.Barrier(3), context.Queue()
    started = [context.Process(target=begin, args=(url, tmp_path / "files", gate, answers)) for _ in range(3)]
    for process in started:
        process.start()
    found = {answers.get(timeout=120) for _ in started}
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    assert len(found) == 1
    assert found != {""}


def test_the_migrations_make_the_tables_of_the_schema(ledger):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with ledger.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_an_older_ledger_is_refused_until_it_is_upgraded(url, tmp_path):
    Ledger(url, folder=tmp_path / "files").submit("ann", subject_request_id="r-1")
    database = Database(url)
    with database.writing() as connection:
        connection.execute(text("DROP TABLE artefacts"))
        connection.execute(text("ALTER TABLE versions DROP COLUMN purged_time"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(InputError, match=r"earlier version of excise.*excise requests upgrade"):
        Ledger(url, folder=tmp_path / "files")
    assert upgrade_ledger(url, folder=tmp_path / "files") == ("0001", migrations.newest())
    ledger = Ledger(url, folder=tmp_path / "files")
    assert ledger.request("r-1").status == "pending"
    assert [one.kind for one in ledger.events()][-1] == "upgraded"


def test_a_later_ledger_is_refused(url, tmp_path, ledger):
    with ledger.database.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(InputError, match="later version of excise"):
        Ledger(url, folder=tmp_path / "files")


def test_a_database_of_something_else_is_refused(url, tmp_path):
    with Database(url).writing() as connection:
        connection.execute(text("CREATE TABLE customers (name TEXT)"))
    with pytest.raises(InputError, match="holds no ledger"):
        Ledger(url, folder=tmp_path / "files")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://host/name", "sqlite or postgresql"),
        ("", "must be a file or a database's URL"),
        (3, "must be a file or a database's URL"),
        ("nowhere/requests.db", "there is no folder"),
        ("postgresql://nobody@127.0.0.1:9/none", "does not answer"),
        ("postgresql://[::bad/", "url"),
    ],
)
def test_urls_that_hold_no_ledger_are_refused(url, words, tmp_path):
    with pytest.raises(InputError, match=words):
        Ledger(url, folder=tmp_path / "files")


def test_a_password_is_not_shown():
    with pytest.raises(InputError) as error:
        Ledger("postgresql://ann:secret@127.0.0.1:9/none", folder="/tmp/none")
    assert "secret" not in str(error.value)


class TestSqlite:
    """What only a file can be."""

    @pytest.fixture
    def file(self, tmp_path):
        with Ledger(tmp_path / "requests.db") as ledger:
            ledger.submit("ann")
        return tmp_path / "requests.db"

    def test_the_files_are_for_the_owner_alone(self, file):
        for path in [file, file.with_name("requests.files") / "keys" / "ledger.key"]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_missing_ledger_is_not_made_by_reading(self, tmp_path):
        with pytest.raises(InputError, match="there is no ledger yet"):
            Ledger(tmp_path / "requests.db", create=False)
        assert not list(tmp_path.iterdir())

    def test_what_is_no_database_is_refused(self, file):
        file.write_bytes(b"SQLite? No." * 500)
        with pytest.raises(InputError, match="no SQLite database"):
            Ledger(file)

    @pytest.mark.parametrize("place", [b"CREATE TABLE ledgers", b"CREATE TABLE events", b"alembic_version"])
    def test_a_file_whose_own_text_is_damaged_is_refused(self, file, place):
        content = file.read_bytes()
        start = content.index(place)
        file.write_bytes(content[:start] + b"\xac" + content[start + 1 :])
        with pytest.raises(InputError, match=r"damaged|lacks a table|could not be used|holds no ledger"):
            list(Ledger(file, create=False).requests())

    def test_another_ledgers_keys_are_refused(self, file, tmp_path):
        Ledger(tmp_path / "other.db")
        with pytest.raises(InputError, match="key of another ledger"):
            Ledger(file, folder=tmp_path / "other.files")

    def test_a_key_that_others_can_read_is_refused(self, file):
        (file.with_name("requests.files") / "keys" / "ledger.key").chmod(0o640)
        with pytest.raises(InputError, match="chmod 600"):
            Ledger(file)

    def test_a_locked_ledger_says_so(self, file, monkeypatch):
        monkeypatch.setattr("excise.ledger.database.PATIENCE", 0.2)
        ledger = Ledger(file)
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(InputError, match="another process has held the ledger"):
                ledger.submit("bob")
        other.close()
        assert ledger.submit("bob").status == "pending"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
    def test_a_ledger_that_can_only_be_read_is_read(self, file):
        file.chmod(0o400)
        assert len(list(Ledger(file, create=False).requests())) == 1
        with pytest.raises(InputError, match="can't be written"):
            Ledger(file).submit("bob")

    def test_it_lasts(self, file):
        """Write-ahead log, forced to disk, with foreign keys."""
        with Ledger(file).database.reading() as connection:
            found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in SETTINGS}
        assert found == SETTINGS


SETTINGS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_full_disk_changes_nothing(ledger, monkeypatch):
    from sqlalchemy.exc import OperationalError

    ledger.submit("ann")

    def full(*_):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr("excise.ledger.ledger.project", full)
        with pytest.raises(InputError, match="the disk is full; nothing was changed"):
            ledger.submit("bob")
    assert len(list(ledger.events())) == 2
    assert ledger.counts()["pending"] == 1


def test_an_altered_end_is_not_built_on(ledger):
    ledger.submit("ann")
    with ledger.database.writing() as connection:
        connection.execute(text("UPDATE ledgers SET events = 1"))
    with pytest.raises(InputError, match="end of the ledger's events was altered"):
        ledger.submit("bob")


def test_values_go_into_statements_as_values(ledger):
    name = "x'; DROP TABLE requests; --"
    ledger.submit(name, subject_request_id="r-1")
    ledger.deny("r-1", name)
    assert ledger.request("r-1").reason == name
    assert ledger.database.tables() >= {REQUESTS.name}


def test_two_ledgers_do_not_share_a_folder(tmp_path, clock):
    """Such as requests.db and requests.sqlite, which both would have requests.files."""
    Ledger(tmp_path / "requests.db", clock=clock).close()
    with pytest.raises(InputError, match="holds the files of another ledger"):
        Ledger(tmp_path / "requests.sqlite", clock=clock)
    assert len(list(Ledger(tmp_path / "requests.db", clock=clock).events())) == 1


def test_a_lost_database_is_not_begun_anew_unseen(tmp_path, clock):
    Ledger(tmp_path / "requests.db", clock=clock).close()
    for file in tmp_path.glob("requests.db*"):
        file.unlink()
    with pytest.raises(InputError, match="If its database is lost, restore it"):
        Ledger(tmp_path / "requests.db", clock=clock)


def test_a_beginning_that_was_killed_after_the_keys_is_finished(tmp_path, clock):
    LedgerKeys.make(tmp_path / "requests.files" / "keys")
    with Ledger(tmp_path / "requests.db", clock=clock) as begun:
        assert [one.kind for one in begun.events()] == ["created"]


def test_a_disk_without_room_for_keys_is_said_to_be_so(tmp_path, clock, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        Ledger(tmp_path / "requests.db", clock=clock)
    monkeypatch.undo()
    with Ledger(tmp_path / "requests.db", clock=clock) as begun:
        assert [one.kind for one in begun.events()] == ["created"]
