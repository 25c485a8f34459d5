"""Pieces of work on processes: what comes back, and what happens where one dies."""

import joblib
import pieces_of_work
import pytest
import torch

from excise._support import workers
from excise._support.cluster import told_of_workers
from excise._support.parcels import packed
from excise._support.workers import Done, OneAtATimeWarning, each
from excise.errors import InputError, WorkersLostError


def test_nobody_is_asked_without_being_told_of():
    assert not workers.asked_for()
    with joblib.parallel_config(backend="loky", n_jobs=1):
        assert not workers.asked_for()
    with told_of_workers(None, None):
        assert not workers.asked_for()
    with joblib.parallel_config(backend="loky", n_jobs=2):
        assert workers.asked_for()


def test_threads_are_refused_with_a_warning():
    with (
        joblib.parallel_config(backend="threading", n_jobs=2),
        pytest.warns(OneAtATimeWarning, match="share a random state"),
    ):
        assert not workers.asked_for()


def test_a_thing_that_cannot_be_sent_is_refused_only_where_there_are_workers():
    thing = (one for one in ())
    workers.require_sendable(thing, "the task")
    with told_of_workers(2, None), pytest.raises(InputError, match="generator"):
        workers.require_sendable(thing, "the task")


@pytest.mark.slow
def test_pieces_come_back_with_their_places():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = {done.place: done.found for done in each(pieces_of_work.double, 7, [3, 1, 2], "a number")}
        assert found == {0: 21, 1: 7, 2: 14}
        assert list(each(pieces_of_work.double, 7, [], "a number")) == []
        assert not any(done.found for done in each(pieces_of_work.is_asked, None, range(2), "nothing"))


def test_a_piece_has_as_many_threads_of_torch_as_it_is_told_to(monkeypatch):
    before = torch.get_num_threads()
    parcel = packed(None, "nothing")
    for threads in (2, 1):
        done = workers._do(pieces_of_work.threads, parcel.digest, threads, parcel.data, 5, None)
        assert (done.place, done.found) == (5, threads)
        assert torch.get_num_threads() == before
    told = []
    monkeypatch.setattr(workers, "_round", lambda _, do, *__: told.append(do.args[-1]) or [Done(0, None)])
    for options in ({}, {"inner_max_num_threads": 3}):
        with joblib.parallel_config(backend="loky", n_jobs=2, **options):
            list(each(pieces_of_work.threads, None, [1], "nothing"))
    assert told == [1, 3]


@pytest.mark.slow
def test_a_process_that_dies_costs_its_piece(tmp_path):
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = {done.place: done.found for done in each(pieces_of_work.die_once, str(tmp_path), [1, 2, 3, 4], "it")}
    assert found == {0: 10, 1: 20, 2: 30, 3: 40}
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_processes_that_die_each_time_end_it(monkeypatch):
    monkeypatch.setattr(workers, "FRUITLESS", 2)
    with (
        joblib.parallel_config(backend="loky", n_jobs=2),
        pytest.raises(WorkersLostError, match="again and again without a piece of work done"),
    ):
        list(each(pieces_of_work.die, None, [1, 2], "nothing"))


@pytest.mark.slow
def test_an_error_in_a_piece_is_the_callers():
    with joblib.parallel_config(backend="loky", n_jobs=2), pytest.raises(KeyError, match="what is this"):
        list(each(pieces_of_work.fail, None, [1, 2, 3], "nothing"))


def test_jobs_and_cluster_are_two_ways():
    with pytest.raises(InputError, match="pass one of them"), told_of_workers(2, "tcp://127.0.0.1:1"):
        pass
