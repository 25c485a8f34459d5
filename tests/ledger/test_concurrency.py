"""Several processes at one ledger: each is answered as if it were alone."""

import threading

import pytest

from excise.ledger.batch import are_as_taken, asked_by
from excise.ledger.events import Entry
from excise.ledger.ledger import Ledger


@pytest.fixture
def another(url, tmp_path, ledger, clock):  # noqa: ARG001 - the ledger is begun first
    with Ledger(url, folder=tmp_path / "files", author="second officer", clock=clock) as opened:
        yield opened


def at_once(*calls):
    """Run functions in threads of their own; gives what each returned, or the error."""
    found = [None] * len(calls)

    def run(place):
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def test_the_same_request_from_two_sides_is_taken_in_once(ledger, another):
    names = [f"r-{number}" for number in range(10)]
    ready = threading.Barrier(2, timeout=5)

    def submit(here):
        found = []
        for name in names:
            ready.wait()
            found.append(here.submit("ann", subject_request_id=name).status)
        return found

    assert at_once(lambda: submit(ledger), lambda: submit(another)) == [["pending"] * 10] * 2
    assert [one.subject_request_id for one in ledger.events() if one.kind == "received"] == names


def test_a_request_that_is_withdrawn_while_a_worker_looks_at_it_waits(ledger, another):
    """As opposed to two transactions that wait for each other, of which the server ends one with an error."""
    ledger.submit("ann", subject_request_id="r-1")
    with ledger.writing() as (connection, record):
        record([Entry("requires_retraining", {"reason": "a gate"}, "r-1")])
        asked = asked_by(connection, "r-1", ledger.seal)
    begun = threading.Event()

    def look():
        with ledger.writing() as (connection, _):
            begun.set()
            threading.Event().wait(0.2)
            return are_as_taken(connection, [asked])

    def withdraw():
        begun.wait()
        return another.cancel("r-1", "withdrawn").status

    assert at_once(look, withdraw) == [True, "cancelled"]
