"""CKA against a slow version and its invariances; which layers are compared, on what, and how often data are read."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.evidence.representation import MOST_LAYERS, MOST_SAMPLES, linear_cka, representation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def slow(X, Y):
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) with the centring matrix, as the paper has it."""

    def hsic(K, L):
        H = np.eye(len(K)) - 1 / len(K)
        return np.trace(K @ H @ L @ H)

    K, L = X @ X.T, Y @ Y.T
    return hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))


def by_features(X, Y):
    X, Y = X - X.mean(0), Y - Y.mean(0)
    return np.linalg.norm(Y.T @ X) ** 2 / np.linalg.norm(X.T @ X) / np.linalg.norm(Y.T @ Y)


@pytest.mark.parametrize("shape", [(12, 5, 7), (6, 40, 3), (5, 2, 2)])
def test_cka_is_that_of_the_paper(shape, rng):
    n, p, q = shape
    X, Y = rng.standard_normal((n, p)) + 3, rng.standard_normal((n, q)) - 1
    assert linear_cka(X, Y) == pytest.approx(slow(X, Y), abs=1e-12)
    assert linear_cka(X, Y) == pytest.approx(by_features(X, Y), abs=1e-12)


def test_cka_knows_no_rotation_scale_or_shift_but_a_stretch(rng):
    X, Y = rng.standard_normal((20, 6)), rng.standard_normal((20, 6))
    Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    assert linear_cka(X, X) == pytest.approx(1)
    assert linear_cka(X, 7 * X @ Q + 2) == pytest.approx(1)
    assert linear_cka(0.1 * X @ Q, Y) == pytest.approx(linear_cka(X, Y))
    assert linear_cka(X * [9, 1, 1, 1, 1, 1], X) < 0.9
    assert linear_cka([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], [[1.0], [1.0], [-1.0], [-1.0]]) == (
        pytest.approx(2**-0.5)  # one of two features, each of the same size
    )
    assert np.isnan(linear_cka(np.ones((4, 2)), X[:4]))


class Counting:
    def __init__(self, count, seed):
        inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
        self.samples, self.reads = list(zip(inputs, torch.arange(count) % 3, strict=True)), 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, place):
        self.reads += 1
        return self.samples[place]


def network(seed, depth=2):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inner = [part for _ in range(depth - 1) for part in (nn.Linear(8, 8), nn.Tanh())]
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *inner, nn.Linear(8, 3))


def task(count=20, depth=2, test=15):
    return Task(network(0, depth), nn.CrossEntropyLoss(reduction="none"), Counting(count, 0), Counting(test, 1))


def test_layers_by_hand():
    made = task()
    models = [network(seed) for seed in range(5)]
    found = representation(made, made, models)
    assert [one.layer for one in found.layers] == ["2", "4"]  # layer "0" reads the data themselves
    inputs = torch.stack([one[0] for one in made.train_set.samples])
    with torch.no_grad():
        features = [model[:4](inputs).double().numpy() for model in models]
    far = [[1 - slow(one, other) for other in features] for one in features]
    gap = found.layers[1].forget
    assert gap.model == pytest.approx(np.mean(far[1][2:]), abs=1e-6)
    assert gap.original == pytest.approx(np.mean(far[0][2:]), abs=1e-6)
    assert gap.floor == pytest.approx(np.mean([far[2][3], far[2][4], far[3][4]]), abs=1e-6)
    assert found.forget.model == pytest.approx(np.mean([one.forget.model for one in found.layers]))
    assert found.to_original == pytest.approx(max(one.to_original for one in found.layers))
    assert np.isnan(representation(made, made, models[:3]).test.floor)


def test_features_that_stay_are_told_from_features_that_move():
    made, models = task(), [network(seed) for seed in range(4)]
    masked = copy.deepcopy(models[0])
    with torch.no_grad():
        masked[-1].bias -= torch.tensor([30.0, 0, 0])
    assert representation(made, made, [models[0], masked, *models[2:]]).to_original == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        masked[0].weight += 0.01 * torch.randn(8, 6, generator=torch.Generator().manual_seed(5))
    assert representation(made, made, [models[0], masked, *models[2:]]).to_original > 1e-7


def test_frozen_layers_and_linear_models_tell_nothing():
    made = task()
    heads = [copy.deepcopy(made.model) for _ in range(4)]
    for seed, model in enumerate(heads):
        model[-1] = network(seed)[-1]
    assert representation(made, made, heads) is None
    data = made.train_set
    linear = Task(nn.Linear(6, 3), nn.CrossEntropyLoss(reduction="none"), data, made.test_set)
    assert representation(linear, linear, [nn.Linear(6, 3) for _ in range(3)]) is None


def test_memory_and_reads_are_bounded():
    made = task(count=MOST_SAMPLES + 50, depth=15, test=MOST_SAMPLES + 20)
    found = representation(made, made, [network(seed, 15) for seed in range(3)])
    assert (found.forget_samples, found.test_samples) == (MOST_SAMPLES, MOST_SAMPLES)
    assert MOST_LAYERS - 1 <= len(found.layers) <= MOST_LAYERS
    assert found.layers[-1].layer == "30"
    assert made.train_set.reads <= MOST_SAMPLES + 1  # and one to learn a sample's size
    assert made.test_set.reads <= MOST_SAMPLES


def test_few_forgotten_samples_have_no_figure_of_their_own():
    made = task()
    found = representation(made, made.only([1, 2]), [network(seed) for seed in range(4)])
    assert found.forget is None
    assert found.test.model > 0
    assert found.to_original > 0


def test_convolutions_are_averaged_over_space_and_odd_layers_left_out():
    class Odd(nn.Module):
        def __init__(self, seed):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.first, self.second = nn.Conv2d(1, 4, 2), nn.Conv2d(4, 5, 1)
                self.folded, self.head, self.unused = nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, inputs):
            maps = self.second(torch.tanh(self.first(inputs.view(-1, 1, 2, 3))))
            rows = self.folded(maps.permute(0, 2, 3, 1).reshape(-1, 5))  # a row for each place, not for each sample
            return self.head(rows.view(len(inputs), -1, 5).mean(1))

    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, torch.arange(12) % 3)
    made = Task(Odd(0), nn.CrossEntropyLoss(reduction="none"), data, data)
    models = [Odd(seed) for seed in range(4)]
    found = representation(made, made, models)
    assert [one.layer for one in found.layers] == ["second", "head"]
    with torch.no_grad():
        first, other = (torch.tanh(model.first(inputs.view(-1, 1, 2, 3))).mean((2, 3)).numpy() for model in models[:2])
    assert found.layers[0].to_original == pytest.approx(1 - slow(first, other), abs=1e-5)
