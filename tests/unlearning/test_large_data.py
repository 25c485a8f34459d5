"""Sets that are larger than what a process may hold: no part of forgetting, its proof or an audit ever holds them."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Effort, Exact, Task, Unlearner, audit, exact_fit, fit, head
from excise._support.memory import resident
from excise.errors import InputError
from excise.evidence import duplicates
from excise.privacy import streamed_objective
from excise.privacy.head_objective import InMemory, trained_weights
from excise.privacy.sightings import Head, sight
from excise.privacy.streamed_objective import InFile
from excise.task import task as task_module
from excise.task.predictions import plain_losses_of, predict
from excise.task.requests import parse_request
from excise.unlearning import exact as exact_module
from excise.unlearning import head as head_module

COUNT, WIDTH = 20_000, 3000  # 240 MB of float32
ROOM = 120 * 2**20
pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")


class Endless:
    """Samples that are made as they are read, and how much memory the process has meanwhile."""

    def __init__(self, count=COUNT, shift=0.0):
        self.count, self.start, self.most, self.read, self._shift = count, resident(), 0, 0, shift
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(500, WIDTH, generator=generator)
        self._labels = self._table[:, :4].argmax(1)

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return self.__getitems__([place])[0]

    def __getitems__(self, places):
        self.read += len(places)
        self.most = max(self.most, resident() - self.start)
        rows = self._table[torch.tensor(places) % 500] + torch.tensor(places)[:, None] / 1e6 + self._shift
        return list(zip(rows, self._labels[torch.tensor(places) % 500], strict=True))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.fixture
def task():
    data = Endless()
    held_out = Endless(300, shift=0.01)
    held_out._labels = held_out._labels.roll(7)
    start = Task(network(), nn.CrossEntropyLoss(), data, held_out, weight_decay=1e-3)
    trained = fit(start, ids=torch.arange(2000), epochs=3)
    data.start = resident()
    return start.with_model(trained.model)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "step"])
def test_forgetting_and_its_certificate_hold_a_batch_at_a_time(task, method):
    done = Unlearner(task, method).forget([3, 8])
    before = task.train_set.read
    assert done.certificate.gradient_norm > 0
    assert task.train_set.read - before == COUNT - 2
    assert task.train_set.most < ROOM


@pytest.mark.slow
def test_an_audit_with_a_retraining_holds_a_batch_at_a_time(task, monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_VALUES", 2_000_000)
    quick = Effort(
        relearn_steps=2, resamples=20, permutations=99, held_out_resamples=20, few_shot_draws=1, retained_samples=500
    )

    def audited(data):
        own = replace(task, train_set=data, retrain=lambda ids, seed: fit(own, ids=ids[:500], seed=seed).model)
        done = Unlearner(own, "step").forget([3, 8])
        data.start, data.most, before = resident(), 0, data.read
        return audit(own, done, retrained=1, effort=quick, cache=None), before

    audited(Endless(600))  # what is imported on the way is no sample
    data = Endless(14_000)  # 168 MB
    found, before = audited(data)
    assert len(found.retrained) == 1
    assert found.train_hash is not None
    assert data.read - before > 2 * len(data)
    assert data.most < ROOM


class Counted:
    """Counts the samples that are alive."""

    def __init__(self, count, first=0):
        self.count, self.first, self.alive, self.most, self.read = count, first, 0, 0, 0

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        generator = torch.Generator().manual_seed(self.first + place)
        sample = torch.randn(4, generator=generator)
        self.read, self.alive = self.read + 1, self.alive + 1
        self.most = max(self.most, self.alive)
        weakref.finalize(sample, self._gone)
        return sample, int(sample[0] > 0)

    def _gone(self):
        self.alive -= 1


@pytest.mark.parametrize("method", ["auto", "step", "drift"])
def test_no_more_than_a_batch_of_samples_is_alive(method, monkeypatch):
    monkeypatch.setattr(task_module, "MOST_KEPT_VALUES", 0)
    monkeypatch.setattr(duplicates, "MOST_VALUES", 1000)
    torch.manual_seed(0)
    data, model = Counted(1200), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    task = Task(model, nn.CrossEntropyLoss(), data, Counted(50, first=10**6), weight_decay=1e-2)
    done = Unlearner(task, method, guard=None).forget([3, 8])
    assert done.certificate.gradient_norm > 0
    quick = Effort(
        relearn_steps=2, resamples=20, permutations=99, held_out_resamples=20, few_shot_draws=1, retained_samples=100
    )
    audit(task, done, effort=quick)
    assert data.read > 2 * len(data)
    assert 0 < data.most <= 2 * 256  # one that is read, and one that is still looked at
    assert data.alive <= 1


def test_the_hardest_samples_are_found_by_losses_alone():
    task = linear_task()
    losses = predict(task, task.model, [5, 2, 9]).losses
    assert plain_losses_of(task, task.model, [5, 2, 9]).tolist() == losses.tolist()
    every = predict(task, task.model).losses
    assert list(parse_request("hardest:4", task).ids) == np.argsort(-every, kind="stable")[:4].tolist()


def linear_task(loss=None, *, outputs=3, **layer):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(300, 6, generator=generator)
    labels = inputs[:, :3].argmax(1)
    if outputs == 1:
        labels = inputs[:, :1] + 0.1 * torch.randn(300, 1, generator=generator)
    torch.manual_seed(0)
    start = Task(nn.Linear(6, outputs, **layer), loss or nn.CrossEntropyLoss(), TensorDataset(inputs, labels))
    return start.with_model(exact_fit(start).model)


@pytest.mark.parametrize(
    ("task", "dense"),
    [
        (linear_task(), True),
        (linear_task(), False),
        (linear_task(bias=False), True),
        (linear_task(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))), False),
        (linear_task(nn.MSELoss(), outputs=1), True),
    ],
)
def test_an_objective_in_a_file_is_the_one_in_memory(task, dense, monkeypatch):
    layer = task.model
    monkeypatch.setattr(streamed_objective, "PIECE", 100)
    if not dense:
        monkeypatch.setattr(streamed_objective, "DENSE", 0)
        monkeypatch.setattr("excise.privacy.head_objective.DENSE", 0)
    held, in_file = InMemory(task, layer), InFile(task, layer, 300)
    for some in torch.arange(300).split(64):
        for one in (held, in_file):
            one.add(sight(task, Head(task.model, layer), task.batch(some)))
    tilt = torch.randn(trained_weights(layer).shape, generator=torch.Generator().manual_seed(3)).double()
    kept = torch.arange(300) % 7 != 0
    pairs = [one.objective(300.0) for one in (held, in_file)]
    pairs = [one.without(kept, 250.0).without(torch.arange(257) != 4, 249.0).tilted(tilt) for one in pairs]
    assert [one.longest for one in pairs] == pytest.approx([pairs[0].longest] * 2, rel=0.3)
    at = trained_weights(layer) + 0.1
    near = [one.at(at) for one in pairs]
    assert near[1].value == pytest.approx(near[0].value, rel=1e-12)
    torch.testing.assert_close(near[1].gradient, near[0].gradient, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(near[1].product(tilt), near[0].product(tilt), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(near[1].inverse()(tilt), near[0].inverse()(tilt), rtol=1e-9, atol=1e-12)
    columns = torch.eye(tilt.numel()).double().reshape(-1, *tilt.shape)
    hessian = torch.stack([near[0].product(one).flatten() for one in columns])
    truth = float(torch.linalg.solve(hessian, near[0].gradient.flatten()).norm())
    assert 0.3 * truth < near[0].least_step(near[0].inverse()) <= truth * (1 + 1e-9)


@pytest.mark.parametrize("layer", [{}, {"bias": False}])
def test_exact_by_a_file_gives_the_weights_of_exact_in_memory(layer, monkeypatch):
    task = linear_task(**layer)
    held = Unlearner(task, Exact()).forget([1, 2, 3]).model
    monkeypatch.setattr(exact_module, "MOST_KEPT", 100)
    monkeypatch.setattr(streamed_objective, "PIECE", 100)
    unlearner = Unlearner(task, Exact())
    done = unlearner.forget([1, 2, 3])
    torch.testing.assert_close(done.model.weight, held.weight, rtol=1e-5, atol=1e-7)
    unlearner.forget([4, 9])  # goes on from there
    truth = exact_fit(task, ids=[i for i in range(300) if i not in (1, 2, 3)], double=True).model.weight
    torch.testing.assert_close(done.model.weight.double(), truth, rtol=1e-4, atol=1e-6)
    chosen = Unlearner(task).forget([1, 2, 3])
    assert "more of its samples than memory can hold" in chosen.shortened
    assert chosen.certificate.kind == "convex"
    assert chosen.certificate.bound < 0.05 * float(task.model.weight.detach().norm())


def test_training_to_the_minimum_by_reading_again_gives_the_same_weights(monkeypatch):
    for loss in (None, nn.MSELoss()):
        task = linear_task(loss, outputs=1 if loss else 3)
        held = exact_fit(task, ids=range(100, 250), double=True).model
        with monkeypatch.context() as patched:
            patched.setattr(task_module, "MOST_KEPT_VALUES", 10)
            again = exact_fit(task, ids=range(100, 250), double=True).model
        torch.testing.assert_close(again.weight, held.weight, rtol=1e-7, atol=1e-9)


def test_embeddings_of_a_head_may_lie_in_a_file(monkeypatch):
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 3))
    task = replace(linear_task(), model=frozen)
    held = head(task).task.train_set.tensors
    with monkeypatch.context() as patched:
        patched.setattr(head_module, "MOST_KEPT", 100)
        made = []
        patched.setattr(head_module, "Spilled", lambda *given: made.append(kept := Spilled(*given)) or kept)
        in_file = head(task).task.train_set.tensors
    assert len(made) == 1
    assert all(torch.equal(one, other) for one, other in zip(held, in_file, strict=True))


Spilled = head_module.Spilled


def test_an_empty_set_has_no_embeddings():
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3))
    task = replace(linear_task(), model=frozen, test_set=TensorDataset(torch.zeros(0, 6), torch.zeros(0).long()))
    with pytest.raises(InputError, match="is empty"):
        head(task)
