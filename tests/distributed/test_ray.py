"""Trainings and searches on workers of Ray; ``pip install '.[ray]'`` has it, and without it all of this is skipped."""

import os
import signal
import sys

import joblib
import numpy as np
import pieces_of_work
import pytest

from excise import InputError, foci
from excise._support import ray_cluster, ray_tasks, workers
from excise._support.workers import each
from excise.errors import WorkersLostError

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two workers on this machine, which find what the tests import."""
    from ray.util.joblib import register_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("RAY_worker_niceness", "0")  # else other programs come first
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        register_ray()
        yield
        ray.shutdown()


def pieces(work, shared, given):
    with joblib.parallel_config(backend="ray", n_jobs=2):
        assert workers.asked_for()
        return {done.place: done.found for done in each(work, shared, given, "it")}


def test_pieces_come_back_with_their_places():
    assert pieces(pieces_of_work.double, 7, [3, 1, 2]) == {0: 21, 1: 7, 2: 14}
    assert not any(pieces(pieces_of_work.is_asked, None, range(2)).values())


def test_all_processors_are_asked_for_without_a_number():
    with joblib.parallel_config(backend="ray"):
        assert workers.asked_for()
    with joblib.parallel_config(backend="ray", n_jobs=1):
        assert not workers.asked_for()
    assert [ray_cluster.processors(wanted) for wanted in (None, -1, 1, 2, 9)] == [2, 2, 1, 2, 2]


def test_a_worker_that_dies_costs_its_piece(tmp_path):
    assert pieces(pieces_of_work.die_once, str(tmp_path), [1, 2, 3, 4]) == {0: 10, 1: 20, 2: 30, 3: 40}
    assert (tmp_path / "died").exists()


def test_workers_that_die_each_time_end_it(monkeypatch):
    monkeypatch.setattr(workers, "FRUITLESS", 1)
    monkeypatch.setattr(ray_cluster, "ONE_PROCESSOR", {"num_cpus": 1, "max_retries": 0})
    with pytest.raises(WorkersLostError, match="again and again without a piece of work done"):
        pieces(pieces_of_work.die, None, [1, 2])


def test_a_cluster_without_machines_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ray_cluster, "LOOK", 0.1)
    never = ray.remote(num_cpus=99)(pieces_of_work.double).remote(1, 1)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": False}])
    with pytest.raises(WorkersLostError, match="no machine left that is alive"):
        ray_cluster.received(never)
    ray.cancel(never)


def test_an_error_in_a_piece_is_the_callers():
    with pytest.raises(KeyError, match="what is this"):
        pieces(pieces_of_work.fail, None, [1, 2, 3])


def test_workers_with_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(ray_tasks, "versions_here", lambda: ("0.0", "1.0", "3.9"))
    with pytest.raises(InputError, match=r"a worker of Ray has excise .* and here are 0\.0, 1\.0 and 3\.9"):
        pieces(pieces_of_work.double, 7, [3])


@pytest.mark.parametrize("discrete", [False, True])
def test_columns_are_chosen_as_by_one_process(discrete):
    X, y = table(discrete)
    same(foci(X, y, random_state=1, backend="ray"), foci(X, y, random_state=1))


def test_a_killed_worker_costs_its_block(monkeypatch):
    from excise.statistics._ray_crew import RayCrew

    plain, asked = RayCrew.ask, []

    def ask(crew, steps):
        asked.append(crew)
        if len(asked) == 2:
            os.kill(ray.get(crew._actors[0].__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        return plain(crew, steps)

    monkeypatch.setattr(RayCrew, "ask", ask)
    X, y = table(False)
    same(foci(X, y, random_state=0, backend="ray"), foci(X, y, random_state=0))
    assert len(asked) > 2


def table(discrete):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (300, 70)) if discrete else rng.standard_normal((300, 70))
    return X, X[:, 23] * X[:, 68] + X[:, 5] + 0.1 * rng.standard_normal(300)


def same(one, other):
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.scores, other.scores)
