"""Heads on frozen networks: embedded once, forgotten exactly, and nothing of the forgotten is kept."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import excise
from excise import InputError, NeverSupportedError, Task, Unlearner, exact_fit
from excise.task.fingerprint import sample_digest
from excise.training.model_cache import DamagedWarning

N, GONE = 80, [3, 17, 18]


class Counting(nn.Module):
    """A frozen network that counts the samples which go through it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).requires_grad_(False)
        self.classifier = nn.Linear(5, 3)
        self._seen = 0

    def forward(self, inputs):
        self._seen += len(inputs)
        return self.classifier(self.body(inputs))


@pytest.fixture
def task():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs = torch.randn(N + 20, 6)
        labels = inputs[:, :3].argmax(1)
        sets = TensorDataset(inputs[:N], labels[:N]), TensorDataset(inputs[N:], labels[N:])
        start = Task(Counting(), nn.CrossEntropyLoss(), *sets, weight_decay=0.01, features="fixed", keys=list(range(N)))
    return start.with_model(exact_fit(start, tolerance=1e-9).model)


def flat(model):
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def test_the_whole_model_is_that_of_retraining_and_the_frozen_part_is_not_run(task):
    found = excise.head(task)
    task.model._seen = 0
    done = found.forget(GONE)
    assert task.model._seen == 0
    kept = [number for number in range(N) if number not in GONE]
    truth = exact_fit(task, ids=kept, tolerance=1e-12).model
    assert (flat(done.model) - flat(truth)).norm() <= 1e-5
    assert torch.equal(done.model.body[0].weight, task.model.body[0].weight)
    assert done.certificate.kind == "convex"
    assert done.slices == tuple(f"classifier[{number}]" for number in range(3))
    assert "method exact was chosen" in done.summary()


def test_requests_follow_each_other_by_positions_and_keys(task):
    found = excise.head(task)
    found.forget([1])
    second = found.forget(keys=[2])
    assert second.forgotten == (1, 2)
    with pytest.raises(InputError, match="forgotten already"):
        found.forget([1])


def test_the_outcome_is_saved_and_read_as_one_of_the_whole_task(task, tmp_path):
    done = excise.head(task).forget(GONE)
    done.save(tmp_path / "model.safetensors")
    assert Unlearner.load(tmp_path / "model.safetensors", task).forgotten == tuple(GONE)


def test_embeddings_are_kept_and_those_of_the_forgotten_purged(task, tmp_path):
    excise.head(task, cache=tmp_path)
    task.model._seen = 0
    again = excise.head(task, cache=tmp_path)
    assert task.model._seen <= 2 + len(task.test_set) + 3 * 8  # test samples, and some to see that all is as it was
    (file,) = tmp_path.glob("embeddings-*.safetensors")
    assert len(again.file.read()) == N
    again.forget(GONE)
    left = again.file.read()
    assert len(left) == N - len(GONE)
    assert not {sample_digest(task, place) for place in GONE} & set(left)
    assert file.stat().st_mode & 0o077 == 0


def test_an_embedding_that_a_retained_sample_shares_stays(task, tmp_path):
    inputs, labels = task.train_set.tensors
    inputs[5], labels[5] = inputs[3], labels[3]
    twice = Task(task.model, task.loss, TensorDataset(inputs, labels), weight_decay=0.01)
    found = excise.head(twice, cache=tmp_path)
    assert len(found.file.read()) == N - 1
    found.forget([3])
    assert len(found.file.read()) == N - 1
    found.forget([5])
    assert len(found.file.read()) == N - 2


def test_other_weights_have_other_files_and_a_damaged_one_is_made_anew(task, tmp_path):
    first = excise.head(task, cache=tmp_path)
    bias = task.model.body[0].bias
    before = bias.clone()
    bias.data.add_(1)
    assert excise.head(task, cache=tmp_path).file.path != first.file.path
    first.file.path.write_bytes(b"nothing")
    bias.data.copy_(before)
    with pytest.warns(DamagedWarning, match="embedded anew"):
        assert len(excise.head(task, cache=tmp_path).file.read()) == N


def test_the_layer_alone_is_a_task_like_any_other(task):
    small = excise.head(task).task
    assert isinstance(small.model, nn.Linear)
    outputs = small.model(small.train_set.tensors[0])
    assert torch.allclose(outputs, task.model(task.train_set.tensors[0]), atol=1e-6)
    assert len(small.test_set) == len(task.test_set)


def test_what_is_not_a_head_is_refused(task):
    task.model.body.requires_grad_(True)
    with pytest.raises(NeverSupportedError, match="more is trained than one linear layer"):
        excise.head(task)
    network = nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))
    with pytest.raises(NeverSupportedError, match="outputs are not those of the linear layer"):
        excise.head(Task(network, nn.CrossEntropyLoss(), task.train_set))


@pytest.mark.parametrize("pair", [(nn.ReLU(), nn.LeakyReLU(0.01)), (nn.GELU(), nn.GELU("tanh"))])
def test_embeddings_of_another_network_are_not_taken_for_its_own(task, tmp_path, pair):
    """The same weights, and other outputs."""
    frozen, layer = nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)
    first, second = (
        excise.head(Task(nn.Sequential(frozen, one, layer), task.loss, task.train_set), cache=tmp_path) for one in pair
    )
    assert first.file.path != second.file.path


class Switched(nn.Module):
    scale: ClassVar[list[float]] = [1.0]

    def forward(self, inputs):
        return inputs * self.scale[0]


def test_embeddings_that_no_longer_hold_are_made_anew(task, tmp_path):
    """Not all that a network depends on can be hashed, so some embeddings are looked at again."""
    network = nn.Sequential(Switched(), nn.Linear(6, 3))
    made = Task(network, task.loss, task.train_set, weight_decay=0.01)
    before = excise.head(made, cache=tmp_path).task.train_set.tensors[0]
    Switched.scale[0] = 2.0
    after = excise.head(made, cache=tmp_path).task.train_set.tensors[0]
    assert torch.allclose(after, 2 * before)


class Centred(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(0)


def test_features_that_depend_on_the_batch_are_refused(task):
    made = Task(nn.Sequential(Centred(), nn.Linear(6, 3)), task.loss, task.train_set, weight_decay=0.01)
    with pytest.raises(NeverSupportedError, match="depends on a sample's company"):
        excise.head(made)


def test_the_certificate_says_what_it_does_not_cover(task):
    free = replace(task, features=None)
    done = excise.head(free).forget(GONE)
    assert done.certificate.last_layer_only
    assert "nothing is guaranteed of what they keep" in done.certificate.reason
    assert not excise.head(task).forget(GONE).certificate.last_layer_only
