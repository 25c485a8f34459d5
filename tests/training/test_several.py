"""Retrainings at once: the same models as one after the other, by processes and by a cluster of Dask."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import joblib
import pytest
import torch
from pieces_of_work import KilledOnce, Noted
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise._support import workers
from excise._support.cluster import told_of_workers
from excise.errors import InputError
from excise.training import several
from excise.training.retraining import SEEDS, retrain
from excise.training.several import retrain_ahead, retrainings

distributed = pytest.importorskip("distributed")


def small_task(**options):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 2))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    # a function of this session, which only goes along by value
    return Task(model, lambda said, true: nn.functional.cross_entropy(said, true, reduction="none"), data, **options)


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.state_dict().values()])


def noted(tmp_path):
    task = small_task()
    return replace(task, retrain=Noted(task, tmp_path / "notes.txt"))


def notes(tmp_path):
    file = tmp_path / "notes.txt"
    return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.fixture(scope="module")
def cluster():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
def test_processes_make_the_same_models_bit_for_bit_and_keep_them(tmp_path):
    task, kept = noted(tmp_path), tmp_path / "kept"
    one_by_one = [weights_of(one.model) for one in retrainings(task, [3, 5], 4, seed=1)]
    list(retrainings(task, [3, 5], 1, seed=1, cache=kept))  # a run that was stopped
    before = notes(tmp_path)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = list(retrainings(task, [3, 5], 4, seed=1, cache=kept))
        again = list(retrainings(task, [3, 5], 4, seed=1, cache=kept))
        sent_back = list(retrainings(task, [3, 5], 2, seed=1))
    for models in (found, again, sent_back):
        assert all(torch.equal(a, weights_of(b.model)) for a, b in zip(one_by_one, models, strict=False))
    assert [one.from_cache for one in found] == [True, False, False, False]
    assert all(one.from_cache and one.threads == 1 and one.seconds > 0 for one in again)
    assert not any(one.model.training for one in (*found, *sent_back))
    made = [f"58 {2 * SEEDS + number}" for number in (1, 2, 3, 0, 1)]
    assert notes(tmp_path) == sorted(before + made)
    assert sorted(one.name.partition("-")[0] for one in kept.iterdir()) == ["model"] * 4


@pytest.mark.slow
def test_what_a_comparison_needs_is_made_ahead(tmp_path):
    task, kept = noted(tmp_path), tmp_path / "kept"
    asked = [([3], 2, 0), ([4, 5], 1, 7)]
    retrain_ahead(task, asked, cache=kept)  # nobody told it of workers
    assert notes(tmp_path) == []
    with joblib.parallel_config(backend="loky", n_jobs=2):
        retrain_ahead(task, asked, cache=None)
        assert notes(tmp_path) == []
        retrain_ahead(task, asked, cache=kept)
    assert notes(tmp_path) == ["58 8000", "59 1000", "59 1001"]
    for forget, count, seed in asked:
        assert all(one.from_cache for one in retrainings(task, forget, count, seed=seed, cache=kept))


def test_a_task_that_cannot_be_sent_is_an_error_and_nothing_is_written(tmp_path):
    task = small_task()
    object.__setattr__(task, "collate", Locked())
    with (
        joblib.parallel_config(backend="loky", n_jobs=2),
        pytest.raises(InputError, match=r"the task can't be sent to workers \(TypeError: .*lock"),
    ):
        list(retrainings(task, [3], 2, seed=0, cache=tmp_path / "kept"))
    assert list(tmp_path.iterdir()) == []


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, samples):
        return torch.utils.data.default_collate(samples)


@pytest.mark.slow
def test_a_cluster_makes_the_same_models_though_a_worker_is_killed(tmp_path, cluster, monkeypatch):
    task, kept = small_task(), tmp_path / "kept"
    dying = replace(task, retrain=KilledOnce(task, tmp_path, seed=SEEDS + 2))
    with joblib.parallel_config(backend="dask", client=cluster):
        found = list(retrainings(dying, [3, 5], 6, seed=0, cache=kept))
        assert (tmp_path / "died").exists()
        assert len(list(kept.iterdir())) == 6
        # where the folder is not the workers' own, models are sent back, and kept all the same
        monkeypatch.setattr(several, "is_seen", lambda _: False)
        elsewhere = list(retrainings(dying, [3, 5], 2, seed=0, cache=tmp_path / "elsewhere"))
    one_by_one = [retrain(dying, [3, 5], seed=SEEDS + number).model for number in range(6)]
    assert all(torch.equal(weights_of(a), weights_of(b.model)) for a, b in zip(one_by_one, found, strict=True))
    assert all(torch.equal(weights_of(a), weights_of(b.model)) for a, b in zip(one_by_one, elsewhere, strict=False))
    assert [one.threads for one in found + elsewhere] == [1] * 8
    assert {one.name for one in (tmp_path / "elsewhere").iterdir()} <= {one.name for one in kept.iterdir()}
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


@pytest.mark.slow
def test_a_worker_without_the_package_is_an_error_before_anything_is_done(tmp_path):
    program = (
        "import sys; sys.modules['excise'] = None; from distributed.cli.dask_worker import main; "
        "main([sys.argv[1], '--no-nanny', '--nthreads', '1', '--no-dashboard'], standalone_mode=False)"
    )
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as made:
        address = made.scheduler_address
        worker = subprocess.Popen(
            [sys.executable, "-c", program, address], stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ""}
        )
        try:
            with (
                pytest.raises(InputError, match=r"the worker tcp.* lacks what it needs \(ModuleNotFoundError.*excise"),
                told_of_workers(None, address),
            ):
                list(retrainings(small_task(), [3], 2, seed=0, cache=tmp_path / "kept"))
        finally:
            worker.kill()
            worker.wait()
    assert list(tmp_path.iterdir()) == []


class Cluster:
    """What is asked of a client of Dask before any work."""

    def __init__(self, *answers):
        self._answers = answers

    def wait_for_workers(self, *_, **__):
        if not self._answers:
            raise TimeoutError("no worker came")

    def run(self, function, *arguments, on_error):
        assert on_error == "return"
        mine = function(*arguments)
        return {f"tcp://{place}": answer(mine) for place, answer in enumerate(self._answers)}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ((), "no workers, or none that answers"),
        ((lambda mine: mine, lambda mine: ("0.0.1", *mine[1:])), "tcp://1 has excise 0.0.1"),
        ((lambda mine: (mine[0], "1.2.3", mine[2]),), "torch 1.2.3"),
        ((lambda mine: (*mine[:2], "3.9"),), "Python 3.9"),
    ],
)
def test_workers_with_other_versions_are_refused(answers, words):
    workers.require_same_versions(Cluster(lambda mine: mine))
    with pytest.raises(InputError, match=words):
        workers.require_same_versions(Cluster(*answers))
