"""Columns shared out over workers: the same answer as alone, whatever becomes of the workers."""

import os
import signal
import socket
import time

import joblib
import numpy as np
import pytest

from excise import InputError, WorkersLostError, foci, lfoci
from excise.statistics import _crew, _dask_crew, _dask_marks, _joblib_crew
from excise.statistics._dask_marks import Exchange, sharing
from excise.statistics._joblib_crew import JoblibCrew


def table(n=300, p=70, discrete=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (n, p)) if discrete else rng.standard_normal((n, p))
    return X, X[:, p // 3] * X[:, p - 2] + X[:, 5] + 0.1 * rng.standard_normal(n)


def same(one, other):
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.totals, other.totals)


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as workers,
        distributed.Client(workers) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("order", "CF")
def test_processes_choose_what_one_does(discrete, order):
    X, y = table(discrete=discrete)
    X = np.asarray(X, order=order)
    for options in ({}, {"stop": False, "max_features": 6}, {"standardize": False}):
        same(foci(X, y, random_state=1, backend="loky", n_jobs=2, **options), foci(X, y, random_state=1, **options))


@pytest.mark.slow
def test_random_tables_of_every_shape():
    """Fewer columns than workers, one column too many for a tile, and lists that end too soon."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(5, 200)), int(rng.integers(1, 60))
        X = rng.integers(0, 3, (n, p)) if seed % 2 else rng.standard_normal((n, p))
        X[0], X[1] = 0, 5  # none is constant
        y = X[:, 0] + X[:, p // 2] ** 2
        same(foci(X, y, random_state=seed, backend="loky", n_jobs=2), foci(X, y, random_state=seed))


@pytest.mark.slow
def test_noise_and_samples_are_the_same_too():
    X, y = table(n=1000)
    for options in ({"noise": 0.1}, {"sample": 300}, {"noise": 0.1, "perturb": "all"}):
        same(*(lfoci(X, y, random_state=2, backend=backend, n_jobs=2, **options) for backend in ("loky", None)))


@pytest.mark.slow
def test_what_joblib_is_told_is_heard_for_large_tables_only(monkeypatch):
    X, y = table()
    asked = []
    ask = JoblibCrew.ask
    monkeypatch.setattr(JoblibCrew, "ask", lambda self, steps: (asked.append(len(steps)), ask(self, steps))[1])
    with joblib.parallel_config(backend="loky", n_jobs=2):
        alone = foci(X, y, random_state=0)
    assert asked == []
    monkeypatch.setattr(_crew, "WORTH_SHARING", 1000)
    same(foci(X, y, random_state=0), alone)
    assert asked == []  # nobody has asked for workers
    with joblib.parallel_config(backend="threading", n_jobs=2):
        foci(X, y, random_state=0)
    assert asked == []
    with joblib.parallel_config(backend="loky", n_jobs=2):
        same(foci(X, y, random_state=0), alone)
    assert set(asked) == {2}
    asked.clear()
    with joblib.parallel_config(backend="loky", n_jobs=5):
        same(foci(X, y, random_state=0, n_jobs=2), alone)
    assert set(asked) == {2}  # what the call itself says comes first


@pytest.mark.slow
def test_searches_inside_workers_are_not_shared_out_again():
    X, _ = table()
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(crews_inside)(X.size) for _ in range(2))
    assert found == [None, None]


def crews_inside(size):
    _crew.WORTH_SHARING = 1
    with joblib.parallel_config(backend="loky", n_jobs=2), _crew.crew_of(None, 2, size) as crew:
        return crew and type(crew).__name__


@pytest.mark.slow
def test_other_backends_are_sent_the_blocks():
    """What joblib does not know to be on this machine gets no files: a backend that was registered, here."""
    from joblib._parallel_backends import LokyBackend

    class Elsewhere(LokyBackend):
        pass

    joblib.register_parallel_backend("elsewhere", Elsewhere)
    X, y = table()
    same(foci(X, y, random_state=0, backend="elsewhere", n_jobs=2), foci(X, y, random_state=0))


def dying_once(work, mark):
    """The work, but the first to do it is killed."""

    def done(*arguments):
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return work(*arguments)
        return os.kill(os.getpid(), signal.SIGKILL)

    return done


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fill", "ask"])
def test_a_killed_process_costs_its_block_and_not_the_run(monkeypatch, tmp_path, stage):
    X, y = table()
    monkeypatch.setattr(_joblib_crew, stage, dying_once(getattr(_joblib_crew, stage), tmp_path / "died"))
    same(
        foci(X, y, random_state=0, max_features=4, backend="loky", n_jobs=2), foci(X, y, random_state=0, max_features=4)
    )
    assert (tmp_path / "died").exists()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_that_always_die_are_an_error(monkeypatch):
    monkeypatch.setattr(_joblib_crew, "fill", die)
    monkeypatch.setattr(_joblib_crew, "TRIES", 2)
    with pytest.raises(WorkersLostError, match=r"Workers were lost 2 times .*leave out the backend"):
        foci(*table(), backend="loky", n_jobs=2)


def fail(*_):
    raise MemoryError("too much")


@pytest.mark.slow
def test_an_error_of_the_work_itself_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(_joblib_crew, "fill", fail)
    monkeypatch.setattr(_joblib_crew, "TRIES", 10**9)
    with pytest.raises(MemoryError, match="too much"):
        foci(*table(), backend="loky", n_jobs=2)


@pytest.mark.slow
def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(_joblib_crew, "IN_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foci(*table(), backend="loky", n_jobs=2)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("excise-")] == []


def test_no_room_for_the_files(monkeypatch, tmp_path):
    monkeypatch.setattr(_joblib_crew, "IN_MEMORY", tmp_path / "none")
    monkeypatch.setattr(_joblib_crew, "BYTES", 10**15)
    with pytest.raises(InputError, match=r"takes .* bytes in .*, which has less; set TMPDIR"):
        foci(*table(), backend="loky", n_jobs=2)


@pytest.mark.parametrize("backend", ["no-such", "ray", 3])
def test_a_backend_that_is_not_there(backend):
    with pytest.raises(InputError, match=f"backend={backend!r} can't be used"):
        foci(*table(), backend=backend)


def test_dask_without_a_client(monkeypatch):
    pytest.importorskip("distributed")

    def none(*_, **__):
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr("joblib._dask.get_client", none)
    with pytest.raises(InputError, match=r"backend='dask' can't be used: .*first create a Dask Client"):
        foci(*table(), backend="dask")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("discrete", [False, True])
def test_a_cluster_chooses_what_one_does(discrete, monkeypatch):
    X, y = table(discrete=discrete)
    same(foci(X, y, random_state=1, backend="dask"), foci(X, y, random_state=1))
    as_given = {"random_state": 1, "standardize": False}
    alone = foci(X, y, **as_given)
    monkeypatch.setattr(_crew, "WORTH_SHARING", 1000)
    with joblib.parallel_config(backend="dask"):
        same(foci(X, y, **as_given), alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["_first_sums", "_ask"])
def test_a_killed_worker_of_a_cluster_costs_its_block(cluster, monkeypatch, tmp_path, stage):
    X, y = table()
    monkeypatch.setattr(_dask_crew, stage, dying_once(getattr(_dask_crew, stage), tmp_path / "died"))
    same(foci(X, y, random_state=0, max_features=4, backend="dask"), foci(X, y, random_state=0, max_features=4))
    assert (tmp_path / "died").exists()
    cluster.wait_for_workers(2, timeout=60)


def find_or_wait(channel, finds):
    """A worker in a step: it finds a column that reaches 5, or waits until another has."""
    with sharing(channel, np.ones(1)) as (mark, tell):
        if finds:
            mark[0] = 5
            tell(1.0)
        deadline = time.monotonic() + 20
        while mark[0] < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        return float(mark[0])


@pytest.mark.slow
def test_a_worker_hears_what_another_finds_in_the_same_step(cluster):
    addresses = sorted(cluster.ncores())
    exchange = Exchange(cluster)
    with exchange.step() as channel:
        waiting = cluster.submit(find_or_wait, channel, False, workers=[addresses[0]], pure=False)
        while not any(cluster.processing().values()):
            time.sleep(0.01)
        time.sleep(0.5)  # it has begun
        finding = cluster.submit(find_or_wait, channel, True, workers=[addresses[1]], pure=False)
        assert cluster.gather([waiting, finding]) == [5, 5]
    assert list(cluster.run(lambda: len(_dask_marks._SCANNED)).values()) == [0, 0]


def test_a_mark_of_another_step_is_not_heard():
    own = np.ones(1)
    _dask_marks._SCANNED["topic", 2] = [own]
    try:
        for channel, mark, expected in ((("topic", 1), 5, 1), (("topic", 2), 3, 3), (("topic", 2), 2, 3)):
            _dask_marks.hear(channel, mark)
            assert own[0] == expected
    finally:
        _dask_marks._SCANNED.clear()


def test_workers_that_only_the_scheduler_can_reach_are_known():
    pytest.importorskip("distributed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert _dask_crew._is_reachable(address)
    assert not _dask_crew._is_reachable(address)
    assert not _dask_crew._is_reachable("inproc://10.0.0.1/2/3")


@pytest.mark.slow
def test_nothing_stays_on_the_workers(cluster):
    foci(*table(), backend="dask")
    deadline = time.monotonic() + 20
    while any(cluster.has_what().values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(cluster.has_what().values())


@pytest.mark.slow
def test_a_cluster_without_workers():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as workers,
        distributed.Client(workers),
        pytest.raises(InputError, match="The Dask cluster has no workers"),
    ):
        foci(*table(), backend="dask")
