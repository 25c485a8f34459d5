"""Sensitivity maps against ξ itself, pixel by pixel."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, xi
from excise.evidence.sensitivity import sensitivity
from excise.slices.activations import GaussianNoise
from excise.task.hashing import hash_of_model

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4))


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        model = network()
    data = TensorDataset(torch.rand(6, 1, 5, 4, generator=generator).double().float(), torch.arange(6) % 4)
    return Task(model, CROSS_ENTROPY, data)


class Recorded:
    """Noise that remembers the copies it made."""

    def __init__(self):
        self.made = []

    def __call__(self, inputs, copies, generator):
        self.made.append(GaussianNoise()(inputs, copies, generator))
        return self.made[-1]


def test_it_is_xi_of_every_pixel_and_the_loss(task):
    noise = Recorded()
    found = sensitivity(task, task.model, 2, copies=300, perturbation=noise, seed=3)
    images = torch.cat(noise.made)
    model = copy.deepcopy(task.model).eval()
    with torch.no_grad():
        losses = CROSS_ENTROPY(model(images).double(), torch.full((300,), 2)).numpy()
    pixels = images[:, 0].numpy()
    assert found.shape == (1, 5, 4)
    for row in range(5):
        for column in range(4):
            assert len(np.unique(pixels[:, row, column])) == 300  # no ties, so that xi is not random
            assert found[0, row, column] == pytest.approx(xi(pixels[:, row, column], losses), abs=1e-12)


def test_an_input_that_decides_is_told_from_one_that_does_nothing():
    """y = x₁: at most (n-2)/(n+1), reached without ties."""
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    model.weight.data[0, 1] = 1.0
    data = TensorDataset(torch.full((2, 3), 0.5), torch.zeros(2))
    task = Task(model, lambda said, truth: said[:, 0] - truth, data)
    found = sensitivity(task, model, 1, copies=500)
    assert found[1] == pytest.approx(498 / 501)
    assert np.abs(found[[0, 2]]).max() < 3 * 0.64 / 500**0.5


def test_what_does_not_vary_has_no_say(task):
    """A pixel that is never perturbed, and a loss that is constant."""

    def masked(inputs, copies, generator):
        noisy = GaussianNoise()(inputs, copies, generator)
        noisy[:, 0, 0] = inputs[0, 0, 0]
        return noisy

    found = sensitivity(task, task.model, 0, copies=100, perturbation=masked)
    assert not found[0, 0].any()
    assert found[0, 1:].all()
    constant = copy.deepcopy(task.model)
    nn.init.zeros_(constant[-1].weight)
    assert not sensitivity(task, constant, 0, copies=50).any()


def test_the_seed_decides_and_the_model_stays(task):
    model = task.model.train()
    model[0].eval()
    modes, before, state = [one.training for one in model.modules()], hash_of_model(model), torch.get_rng_state()
    one, same, other = (sensitivity(task, model, 1, copies=80, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert [module.training for module in model.modules()] == modes
    assert hash_of_model(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.BCEWithLogitsLoss(reduction="none"), torch.tensor([[0.0, 1.0]])),
        (nn.MSELoss(reduction="none"), torch.ones(1, 2)),
    ],
)
def test_labels_and_numbers_work_too(loss, targets):
    task = Task(nn.Linear(3, 2), loss, TensorDataset(torch.rand(1, 3), targets))
    assert np.isfinite(sensitivity(task, task.model, 0, copies=50)).all()


def test_bad_input_is_refused(task):
    tokens = TensorDataset(torch.ones(3, 5, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    mapping = [{"input_ids": torch.ones(5, dtype=torch.long), "labels": torch.tensor(0)}]
    for data in (tokens, mapping):
        with pytest.raises(InputError, match=r"real-valued inputs.*tokens have no pixels"):
            sensitivity(Task(task.model, CROSS_ENTROPY, data), task.model, 0)
    for sample in (6, -1, 1.5):
        with pytest.raises(InputError, match="sample: "):
            sensitivity(task, task.model, sample)
    with pytest.raises(InputError, match="copies must be a whole number, 2 or more, not 1"):
        sensitivity(task, task.model, 0, copies=1)
    with pytest.raises(InputError, match="seed must be"):
        sensitivity(task, task.model, 0, seed=-1)


def test_a_mapping_with_an_image_is_seen_as_the_image_is(task):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = task.model

        def forward(self, pixel_values):
            return self.inner(pixel_values)

    samples = [{"pixel_values": image, "labels": label} for image, label in task.train_set]
    named = Task(Named(), CROSS_ENTROPY, samples)
    found = sensitivity(named, named.model, 2, copies=60)
    assert np.array_equal(found, sensitivity(task, task.model, 2, copies=60))
