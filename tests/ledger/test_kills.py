"""Workers are killed at any instant, again and again: nothing is lost, nothing is applied twice.

``EXCISE_KILLS=500 pytest tests/ledger/test_kills.py`` is the whole of it; the test run has a few.
"""

import os
import random
import signal
import time
from contextlib import suppress

import pytest
import torch
from ledgers import make_task, new_schema

from excise.ledger.ledger import Ledger
from excise.ledger.policy import Policy
from excise.ledger.processing import Worker
from excise.ledger.verification import verify_ledger

KILLS = int(os.environ.get("EXCISE_KILLS", "8"))
REQUESTS = 50 if KILLS > 50 else 10
POLICY = Policy(method="step", guard=None, points=None, batch=2)
SHARED = 200 if KILLS > 50 else 12  # requests of four workers
LEASE = 0.3  # seconds, so that what a dead worker held is soon free

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task():
    return make_task(people=max(REQUESTS, SHARED) + 30)


def submitted(url, folder, requests=REQUESTS):
    ledger = Ledger(url, folder=folder)
    for number in range(requests):
        ledger.submit(f"person-{number}", subject_request_id=f"r{number:02}a")
    return ledger


def in_child(url, folder, task):
    """A worker in a process of its own, which nothing that it does can outlive."""
    child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        torch.set_num_threads(1)
        Worker(Ledger(url, folder=folder), task, POLICY, lease=LEASE).run()
        os._exit(0)
    os._exit(1)


def is_over(child):
    return os.waitpid(child, os.WNOHANG)[0] == child


def place_for(kind, request, tmp_path, name):
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / name}.db"
    return new_schema(request.getfixturevalue("server"))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_is_lost_and_nothing_is_applied_twice(kind, request, tmp_path, task):
    undisturbed = submitted(place_for(kind, request, tmp_path, "calm"), tmp_path / "calm")
    began = time.monotonic()
    assert len(Worker(undisturbed, task, POLICY).run().completed) == REQUESTS
    a_batch = (time.monotonic() - began) / REQUESTS * POLICY.batch
    wanted = undisturbed.lineage()
    undisturbed.close()

    rng, kills, rounds = random.Random(7), 0, 0
    while kills < KILLS:
        rounds += 1
        url, folder = place_for(kind, request, tmp_path, f"round{rounds}"), tmp_path / f"round{rounds}"
        submitted(url, folder).close()
        finished = False
        while not finished:
            child = in_child(url, folder, task)
            if kills < KILLS:
                time.sleep(rng.uniform(0, 3 * a_batch + 0.1))
                finished = is_over(child)
                if not finished:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    kills += 1
            else:
                assert os.waitpid(child, 0)[1] == 0
                finished = True
        require_as_undisturbed(url, folder, wanted)


def require_as_undisturbed(url, folder, wanted):
    with Ledger(url, folder=folder) as ledger:
        assert ledger.counts()["completed"] == REQUESTS
        found = ledger.lineage()
        assert [one.version for one in found] == [one.version for one in wanted]  # bit for bit, all the way
        assert [one.parent for one in found[1:]] == [one.version for one in found[:-1]]
        done = [one.subject_request_id for one in ledger.events() if one.kind == "completed"]
        assert sorted(done) == [f"r{number:02}a" for number in range(REQUESTS)]
        assert found[-1].retained_count == found[0].retained_count - 4 * REQUESTS
        problems = verify_ledger(ledger).problems
        assert not problems, problems[0]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    "instant",
    [
        "excise.ledger.versions.save_weights",  # before the model is written
        "excise.ledger.processing.head_version",  # in the transaction
        "excise.ledger.processing.signed",  # after the version's event, before the certificate
        "excise.ledger.turns.Turns.others_wait",  # after the commit
    ],
)
def test_killed_at_an_instant_that_matters(kind, instant, request, tmp_path, task, monkeypatch):
    url, folder = place_for(kind, request, tmp_path, "ledger"), tmp_path / "files"
    submitted(url, folder).close()
    seen = iter(range(1000))

    with monkeypatch.context() as patched:
        module, _, name = instant.rpartition(".")
        real = _named(module, name)

        def killing(*arguments, **options):
            if next(seen) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        patched.setattr(instant, killing)
        child = in_child(url, folder, task)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    child = in_child(url, folder, task)
    assert os.waitpid(child, 0)[1] == 0
    with Ledger(url, folder=folder) as ledger:
        assert ledger.counts()["completed"] == REQUESTS
        assert [one.number for one in ledger.lineage()] == list(range(REQUESTS // 2 + 1))
        held = {path.stem for path in (folder / "models").glob("*.safetensors")}
        assert held == {one.version for one in ledger.lineage()}
        assert verify_ledger(ledger).is_whole


def _named(module, name):
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        outer, _, inner = module.rpartition(".")
        return getattr(getattr(importlib.import_module(outer), inner), name)


def test_workers_share_the_work_and_none_starves(request, tmp_path, task):
    url, folder = place_for("postgresql", request, tmp_path, ""), tmp_path / "files"
    submitted(url, folder, SHARED).close()
    single = Policy(method="step", guard=None, points=None, batch=1)
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            with suppress(BaseException):
                torch.set_num_threads(1)
                Worker(Ledger(url, folder=folder), task, single, name=f"worker-{number}").run()
                os._exit(0)
            os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    with Ledger(url, folder=folder) as ledger:
        assert ledger.counts()["completed"] == SHARED
        workers = [one.values["worker"] for one in ledger.events() if one.kind == "started"]
        shares = {name: workers.count(name) for name in set(workers)}
        assert sum(shares.values()) == SHARED
        assert len(shares) == 4, shares
        assert min(shares.values()) >= SHARED // 4 // 2, shares
        assert verify_ledger(ledger).is_whole
