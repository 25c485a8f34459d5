"""What an audit takes for the truth is as good as the original, data that change are said, and leaks are found."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import ChangingDataWarning, Drift, Effort, Task, Unlearner, audit, fit
from excise.errors import InputError
from excise.report import html

EFFORT = Effort(retained_samples=100)


def samples(count, seed):
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 2))
    made = Task(
        model, nn.CrossEntropyLoss(), TensorDataset(*samples(120, 0)), TensorDataset(*samples(60, 1)), weight_decay=1e-3
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)  # in a way that fit knows nothing of
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(made.train_set.tensors[0]), made.train_set.tensors[1]).backward()
        optimizer.step()
    return replace(made, keys=[f"c{place // 3}" for place in range(120)])


@pytest.fixture(scope="module")
def done(task):
    return Unlearner(task, Drift()).forget(keys=["c2"])


def once(start, *, ids, seed, **_):
    return fit(start, ids=ids, epochs=1, seed=seed)


def weak(task, ids, seed):
    return fit(task, ids=ids, epochs=1, lr=0.01, seed=seed).model


def test_models_of_fit_that_are_worse_than_the_original_are_not_the_truth(task, done, monkeypatch):
    monkeypatch.setattr("excise.training.retraining.fit", once)
    with pytest.raises(InputError, match=r"not as good as the original.*accuracy .* against .*Pass retrain= to Task"):
        audit(task, done, retrained=2, cache=None, effort=EFFORT)


@pytest.mark.slow
def test_numbers_are_held_to_their_loss(task, monkeypatch):
    inputs, labels = task.train_set.tensors
    held_out = TensorDataset(task.test_set.tensors[0], task.test_set.tensors[1].float()[:, None])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 1))
    numbers = Task(model, nn.MSELoss(), TensorDataset(inputs, labels.float()[:, None]), held_out, weight_decay=1e-4)
    numbers = numbers.with_model(fit(numbers, epochs=300, lr=0.05, seed=0).model)
    done = Unlearner(numbers, Drift()).forget([3, 4])
    monkeypatch.setattr("excise.training.retraining.fit", once)
    with pytest.raises(InputError, match=r"not as good as the original.*loss .* against"):
        audit(numbers, done, retrained=1, cache=None, effort=EFFORT)


def test_a_recipe_of_ones_own_is_believed(task, done):
    own = replace(task, retrain=lambda ids, seed: weak(task, ids, seed))
    assert len(audit(own, done, retrained=1, cache=None, effort=EFFORT).retrained) == 1


@pytest.mark.slow
def test_data_that_change_are_said(task, done):
    class Noisy(list):
        def __getitem__(self, place):
            inputs, label = super().__getitem__(place)
            return inputs + 0.1 * torch.randn(5), label

    noisy = replace(task, train_set=Noisy(zip(*task.train_set.tensors, strict=True)))
    with pytest.warns(ChangingDataWarning, match="without augmentation"):
        audit(noisy, task.model, done.model, [6, 7, 8], effort=EFFORT)


def test_a_persons_rows_are_found_in_a_validation_set(task, done):
    inputs, labels = samples(20, 2)
    inputs[11] = task.train_set.tensors[0][6]  # of customer c2
    validation = TensorDataset(inputs, labels)
    keys = ["c2" if place == 4 else f"v{place}" for place in range(20)]
    also = {"validation": validation, "with keys": (validation, keys), "clean": task.test_set}
    found = audit(task, done, also=also, effort=EFFORT)
    assert found.elsewhere == {"validation": (11,), "with keys": (4, 11), "clean": ()}
    told = " ".join(str(found).split())
    assert "! Also in validation: 1 sample of the request is in it (position 11)." in told
    assert "! Also in with keys: 2 samples of the request are in it (positions 4, 11)." in told
    assert "+ Also in clean: None of the forgotten samples is in this set." in told
    page = " ".join(html(found).split())
    assert "<h3>Also in with keys</h3><p>Look at this</p>" in page
    assert "2 samples of the request are in it (positions 4, 11)." in page
    assert "<h3>Also in clean</h3><p>Good</p>" in page
    assert found.as_dict()["elsewhere"]["with keys"] == [4, 11]


@pytest.mark.parametrize(
    ("also", "words"),
    [
        ([1], "also must be a mapping"),
        ({"validation": 3}, r"also\['validation'\] must be a data set"),
        ({"validation": (TensorDataset(*samples(3, 0)), ["a"])}, "keys has 1 entries"),
    ],
)
def test_further_sets_that_are_none_are_refused(task, done, also, words):
    with pytest.raises(InputError, match=words):
        audit(task, done, also=also, effort=EFFORT)


@pytest.mark.parametrize("where", ["train_set", "test_set"])
def test_samples_without_a_label_do_not_count_as_wrong_answers(task, done, where):
    inputs, labels = (part.clone() for part in getattr(task, where).tensors)
    labels[20:25] = -100
    unlabelled = replace(task, **{where: TensorDataset(inputs, labels)})
    with pytest.raises(InputError, match=f"{where} has 5 samples with the label -100"):
        audit(unlabelled, task.model, done.model, [6, 7, 8], effort=EFFORT)
