"""Any byte that is changed is found, and named."""

import os
import random
import shutil
import sqlite3
import string

import pytest
from ledgers import Clock, new_schema
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.types import Boolean, Float, Integer

from excise.errors import InputError
from excise.ledger.database import Database
from excise.ledger.events import Entry, Event, Head, chained
from excise.ledger.ledger import Ledger
from excise.ledger.policy import Policy
from excise.ledger.processing import Worker
from excise.ledger.purging import register
from excise.ledger.schema import CERTIFICATES, EVENTS, IDENTITIES, LEDGERS, METADATA, REQUESTS, TURNS, VERSIONS
from excise.ledger.turns import Turns
from excise.ledger.verification import verify_ledger

FLIPS = int(os.environ.get("EXCISE_FLIPS", "60"))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def made(request, task, tmp_path_factory):
    """A ledger in which everything happened once, and its rows."""
    folder = tmp_path_factory.mktemp("worked")
    is_file = request.param == "sqlite"
    url = f"sqlite:///{folder / 'requests.db'}" if is_file else new_schema(request.getfixturevalue("server"))
    policy = Policy(method="step", guard=None, points=None, batch=2)
    with Ledger(url, folder=folder / "files", clock=Clock()) as ledger:
        for number in range(3):
            ledger.submit(f"person-{number}", subject_request_id=f"r-{number}x")
        Worker(ledger, task, policy).run()
        ledger.submit("nobody", subject_request_id="none")
        ledger.submit("person-0", subject_request_id="again")
        Worker(ledger, task, policy).run()
        ledger.submit("person-9", subject_request_id="r-9x")
        (folder / "kept.bin").write_bytes(b"curvature")
        register(ledger, folder / "kept.bin", "curvature")
        Turns(ledger, "a worker")._draw()
        yield ledger, everything(ledger.database)


@pytest.fixture
def worked(made):
    """The same ledger for every test, as it was."""
    ledger, rows = made
    assert verify_ledger(ledger).is_whole
    yield ledger
    with ledger.database.writing() as connection:
        for table in reversed(METADATA.sorted_tables):
            for row in reversed(connection.execute(select(table).order_by(*in_order(table))).all()):  # referred to last
                keys = zip(table.primary_key.columns, row, strict=False)
                connection.execute(delete(table).where(*(key == value for key, value in keys)))
        for table in METADATA.sorted_tables:
            for row in rows[table.name]:
                connection.execute(insert(table).values(row))


def problems(ledger):
    return [str(one) for one in verify_ledger(ledger).problems]


def change(ledger, statement):
    with ledger.database.writing() as connection:
        connection.execute(statement)


def test_what_is_whole_says_what_was_looked_at(worked):
    found = verify_ledger(worked)
    assert (found.versions, found.certificates) == (3, 3)
    assert found.events == sum(1 for _ in worked.events())


@pytest.mark.parametrize("column", ["time", "author", "kind", "body", "subject_request_id", "hash"])
def test_the_first_event_that_was_altered_is_named(worked, column):
    change(worked, update(EVENTS).where(EVENTS.c.number.in_([4, 7])).values({column: "x"}))
    assert problems(worked)[0] == "event 4: was altered: its hash is another."


def test_an_event_that_was_removed_is_named(worked):
    change(worked, delete(EVENTS).where(EVENTS.c.number == 5))
    assert problems(worked)[0].startswith("event 5: was removed")


def test_an_end_that_was_cut_off_is_named(worked):
    last = sum(1 for _ in worked.events())
    change(worked, delete(EVENTS).where(EVENTS.c.number == last))
    assert problems(worked)[0].startswith(f"event {last}: was removed")


def test_an_end_cannot_be_cut_off_by_who_lacks_the_key(worked):
    events = list(worked.events())
    change(worked, delete(EVENTS).where(EVENTS.c.number == events[-1].number))
    change(worked, update(LEDGERS).values(events=events[-2].number, head=events[-2].hash))
    assert problems(worked)[0].startswith("the ledger's head: was altered")


def test_an_event_that_was_replaced_with_a_right_hash_is_named(worked):
    events = list(worked.events())
    other = chained(Head(4, events[3].hash), [Entry("denied", {"reason": "x"}, "r-0x")], "officer", events[4].time)[0]
    change(worked, update(EVENTS).where(EVENTS.c.number == 5).values(vars(other)))
    assert problems(worked)[0].startswith("event 6: does not follow event 5")


def test_an_event_that_was_inserted_at_the_end_is_named(worked):
    events = list(worked.events())
    head = Head(events[-1].number, events[-1].hash)
    more: Event = chained(head, [Entry("denied", {"reason": "x"}, "r-9x")], "officer", events[-1].time)[0]
    change(worked, insert(EVENTS).values(vars(more)))
    assert problems(worked)[0].startswith(f"event {more.number}: was inserted")


def test_a_row_that_does_not_follow_from_the_events_is_named(worked):
    change(worked, update(REQUESTS).where(REQUESTS.c.subject_request_id == "r-9x").values(status="denied"))
    assert problems(worked) == ["requests r-9x: was altered: status is not what the events give."]


def test_rows_that_are_gone_or_new_are_named(worked):
    with worked.database.reading() as connection:
        row = connection.execute(select(IDENTITIES).where(IDENTITIES.c.subject_request_id == "r-9x")).one()
    change(worked, delete(IDENTITIES).where(IDENTITIES.c.subject_request_id == "r-9x"))
    assert problems(worked)[0].startswith("identities r-9x 0: was removed")
    change(worked, insert(IDENTITIES).values(row._asdict()))
    change(worked, insert(IDENTITIES).values({**row._asdict(), "place": 1}))
    assert problems(worked)[0].startswith("identities r-9x 1: was removed, inserted or renamed")


def test_certificates_are_held_against_their_events(worked):
    change(worked, delete(CERTIFICATES).where(CERTIFICATES.c.subject_request_id == "r-0x"))
    assert problems(worked) == ["certificates r-0x: was removed."]


@pytest.mark.parametrize("table", [table for table in METADATA.sorted_tables if table is not TURNS], ids=str)
def test_any_character_of_any_row_that_is_changed_is_found(worked, table):
    """Every column of some row, by one character or digit."""
    rng = random.Random(1)
    with worked.database.reading() as connection:
        rows = connection.execute(select(table)).mappings().all()
    for _ in range(max(2, FLIPS // 10)):
        row, column = rng.choice(rows), rng.choice(list(table.columns))
        changed = other_value(rng, column, row[column.name])
        where = [key == row[key.name] for key in table.primary_key.columns]
        try:
            change(worked, update(table).where(*where).values({column.name: changed}))
        except InputError:  # the database itself does not let it be
            continue
        assert problems(worked), (table.name, column.name, row[column.name], changed)
        back = [key == (changed if key is column else row[key.name]) for key in table.primary_key.columns]
        change(worked, update(table).where(*back).values({column.name: row[column.name]}))
    assert not problems(worked)


def other_value(rng, column, value):
    if isinstance(column.type, Boolean):
        return not value
    if isinstance(column.type, Integer):
        return (value or 0) + rng.choice([-1, 1])
    if isinstance(column.type, Float):
        return 0.5 if value is None else value * 1.5
    text = value or ""
    place = rng.randrange(len(text) + 1)
    others = string.ascii_lowercase.replace(text[place : place + 1].lower() or " ", "")
    return text[:place] + rng.choice(others) + text[place + 1 :]


def test_a_turn_that_was_forged_is_found(worked):
    change(worked, update(TURNS).values(until="2099-01-01T00:00:00.000000Z"))
    assert problems(worked)[0].startswith("turns 1: was altered") or "turns" in problems(worked)[0]


def test_any_byte_of_a_model_that_is_changed_is_found(worked):
    rng = random.Random(2)
    files = sorted((worked.folder / "models").glob("*.safetensors"))
    for _ in range(max(5, FLIPS // 10)):
        file = rng.choice(files)
        content = bytearray(file.read_bytes())
        place = rng.randrange(len(content))
        before = content[place]
        content[place] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        assert file.name in problems(worked)[0]
        content[place] = before
        file.write_bytes(content)
    files[0].unlink()
    assert "missing" in problems(worked)[0]


def test_any_byte_of_an_sqlite_file_that_is_changed_is_found_or_changes_nothing(tmp_path, task, clock):
    """Some bytes of the file hold nothing: free space, counters. All others do, and are found."""
    url = tmp_path / "requests.db"
    with Ledger(url, clock=clock) as ledger:
        for number in range(3):
            ledger.submit(f"person-{number}", subject_request_id=f"r-{number}x")
        Worker(ledger, task, Policy(method="step", guard=None, points=None)).run()
    original, folder = url.read_bytes(), tmp_path / "requests.files"
    contents = everything_in(url)
    rng, found = random.Random(3), 0
    for number in range(FLIPS):
        copy = tmp_path / f"flipped{number}.db"
        content = bytearray(original)
        place = rng.randrange(len(content))
        content[place] ^= 1 << rng.randrange(8)
        copy.write_bytes(content)
        if not holds(copy, folder, clock):
            found += 1
        else:
            assert everything_in(copy) == contents, place
        for path in tmp_path.glob(f"flipped{number}.db*"):
            path.unlink()
    assert found > FLIPS / 20
    shutil.rmtree(folder)


def test_what_is_changed_in_an_index_alone_is_found(tmp_path, clock):
    """Or workers would not see a request that the table has."""
    url = tmp_path / "requests.db"
    with Ledger(url, clock=clock) as ledger:
        for number in range(3):
            ledger.submit(f"person-{number}", subject_request_id=f"r-{number}x")
    original, folder = url.read_bytes(), tmp_path / "requests.files"
    with sqlite3.connect(url) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        named = "SELECT rootpage FROM sqlite_schema WHERE name = 'requests_to_do'"
        page = connection.execute(named).fetchone()[0] - 1
    connection.close()
    start = original.index(b"pending", page * size, (page + 1) * size)
    url.write_bytes(original[:start] + b"pendinh" + original[start + 7 :])
    assert not holds(url, folder, clock)
    url.write_bytes(original)
    assert holds(url, folder, clock)


def holds(file, folder, clock):
    try:
        with Ledger(file, folder=folder, create=False, clock=clock) as ledger:
            return verify_ledger(ledger).is_whole
    except InputError:
        return False


def everything(database):
    """All rows, in an order in which they can be inserted."""
    with database.reading() as connection:
        tables = METADATA.sorted_tables
        rows = {table.name: connection.execute(select(table).order_by(*in_order(table))).all() for table in tables}
    return {name: [tuple(row) for row in some] for name, some in rows.items()}


def in_order(table):
    return [table.c.number] if "number" in table.c else list(table.primary_key.columns)


def everything_in(file):
    database = Database(file)
    try:
        return everything(database)
    finally:
        database.engine.dispose()


def test_what_would_stop_the_verification_itself_is_named_too(ledger, task):
    ledger.submit("person-3", subject_request_id="r-3x")
    Worker(ledger, task, Policy(method="step", guard=None, points=None)).run()
    with ledger.database.writing() as connection:
        connection.execute(update(VERSIONS).where(VERSIONS.c.number == 1).values(record="[" * 100_000))
    found = verify_ledger(ledger).problems
    assert "was altered: record is not what the events give" in str(found[0])


def test_a_flag_that_is_neither_true_nor_false_is_named(tmp_path, clock):
    with Ledger(tmp_path / "requests.db", clock=clock) as ledger:
        ledger.submit("ann", subject_request_id="r-1")
        with ledger.writing() as (_, record):
            record([Entry("set_apart", {}, "r-1")])
        with ledger.database.writing() as connection:
            connection.execute(text("UPDATE requests SET alone = 3"))
        assert [str(one) for one in verify_ledger(ledger).problems] == [
            "requests r-1: was altered: alone is not what the events give."
        ]
