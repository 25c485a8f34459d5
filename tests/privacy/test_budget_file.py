"""A budget in a file: two processes never spend more than there is, and nothing that was spent is lost."""

import copy
import errno
import json
import multiprocessing
import os
import pickle
import time

import pytest

from excise._support import locks
from excise.errors import InputError
from excise.privacy import BudgetAccountant, RetrainRequired, ledger


def spend(path, count, epsilon, gate, answers):
    """In a process of its own: how many requests were granted."""
    budget, done = BudgetAccountant.at(path), 0
    gate.wait(60)  # both begin at once
    for _ in range(count):
        try:
            budget.spend(epsilon, 0.1)
            done += 1
        except RetrainRequired:
            pass
    answers.put(done)


def in_two_processes(path, count, epsilon):
    context = multiprocessing.get_context("fork")  # which need not import everything again
    gate, answers = context.Barrier(2), context.Queue()
    both = [context.Process(target=spend, args=(path, count, epsilon, gate, answers)) for _ in range(2)]
    for one in both:
        one.start()
    found = [answers.get(timeout=120) for _ in both]
    for one in both:
        one.join(60)
        assert one.exitcode == 0
    return found


@pytest.mark.slow
def test_two_processes_spend_once_what_fits_once(tmp_path):
    path = tmp_path / "budget.json"
    budget = BudgetAccountant.at(path, 1.0, 0.1)
    assert sorted(in_two_processes(path, 1, 0.6)) == [0, 1]
    assert len(budget.history) == 1
    with pytest.raises(RetrainRequired):
        budget.spend(0.6, 0.1)


@pytest.mark.slow
def test_no_request_of_two_processes_is_lost(tmp_path):
    path = tmp_path / "budget.json"
    budget = BudgetAccountant.at(path, 50.0, 0.1)
    assert in_two_processes(path, 15, 0.01) == [15, 15]
    assert len(budget.history) == 30


def test_a_file_is_one_budget_for_all_that_open_it(tmp_path):
    path = tmp_path / "budget.json"
    one = BudgetAccountant.at(path, 1.0, 1e-5)
    other, copied, sent = BudgetAccountant.at(path), copy.deepcopy(one), pickle.loads(pickle.dumps(one))
    one.spend(0.5, 1e-6, removed=3, certified=0.25)
    for each in (other, copied, sent):
        assert each.history == one.history
        assert each.remaining == one.remaining
    plain = BudgetAccountant(1.0, 1e-5)
    plain.spend(0.5, 1e-6, removed=3, certified=0.25)
    assert json.loads(path.read_text()) == plain.state_dict()
    other.reset()
    assert one.history == []


def test_a_state_does_not_take_back_what_the_file_says(tmp_path):
    budget = BudgetAccountant.at(tmp_path / "budget.json", 1.0, 1e-5)
    budget.spend(0.1, 1e-6)
    early = budget.state_dict()
    budget.spend(0.2, 1e-6)
    budget.load_state_dict(early)  # which is no contradiction
    assert len(budget.history) == 2
    strange = {**early, "history": [{"epsilon": 0.3, "delta": 1e-6, "removed": 1}]}
    with pytest.raises(InputError, match=r"other requests than .*budget\.json"):
        budget.load_state_dict(strange)
    assert len(budget.history) == 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, "there is no budget yet; pass epsilon= and delta="),
        ("{", {}, "holds no budget, or is damaged"),
        ("[]", {}, "must be a mapping with keys mechanism"),
        ('{"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "history": 3}', {}, "must be a list of requests"),
        (
            '{"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "history": []}',
            {"epsilon": 2.0, "delta": 1e-5},
            "holds a budget of epsilon=1, delta=1e-05, not of 2.0",
        ),
    ],
)
def test_a_file_that_is_no_such_budget(tmp_path, content, options, message):
    path = tmp_path / "budget.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        BudgetAccountant.at(path, **options)
    assert (path.read_text() if path.exists() else None) == content


def test_a_file_that_is_gone_is_no_empty_budget(tmp_path):
    budget = BudgetAccountant.at(tmp_path / "budget.json", 1.0, 1e-5)
    (tmp_path / "budget.json").unlink()
    with pytest.raises(InputError, match="could not be read"):
        budget.spend(0.1, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [True, False])
def test_a_lock_that_is_held_is_waited_for_and_one_left_over_is_not(tmp_path, monkeypatch, kernel):
    if not kernel:
        monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(ledger, "PATIENCE", 0.1)
    path = tmp_path / "budget.json"
    budget = BudgetAccountant.at(path, 1.0, 1e-5)
    with ledger.locked(path), pytest.raises(InputError, match=r"another process has held the budget for 0\.1 s"):
        budget.spend(0.1, 1e-6)
    left = tmp_path / ".budget.json.lock"
    left.touch()  # by a process that was killed
    long_ago = time.time() - 2 * locks.STALE
    os.utime(left, (long_ago, long_ago))
    budget.spend(0.1, 1e-6)
    assert len(budget.history) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_without_locks_is_no_place_for_a_budget(tmp_path, monkeypatch):
    """Two processes there might both spend what is left."""
    budget = BudgetAccountant.at(tmp_path / "budget.json", 1.0, 1e-5)

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with pytest.raises(InputError, match=r"budget\.json: could not be written \(No locks available\)"):
        budget.spend(0.1, 1e-6)
