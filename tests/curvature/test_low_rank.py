"""Leading directions: those of a dense decomposition, without the random state that threads share."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.curvature.kfac import cache
from excise.curvature.low_rank import leading_directions
from excise.slices.slices import find_slices


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (15, 15)])
def test_of_a_short_side_they_are_those_of_a_dense_decomposition(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    _, singular, vectors = torch.linalg.svd(matrix)
    found = leading_directions(matrix, 9)
    assert torch.allclose(found[0], singular[:9], atol=1e-4)
    turned = (found[1] * vectors[:9].T).sum(0)  # each may point the other way
    assert torch.allclose(turned.abs(), torch.ones(9), atol=1e-3)


@pytest.mark.parametrize("shape", [(300, 100), (100, 300)])
def test_of_a_wide_matrix_they_are_those_of_torch(shape):
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(*shape, generator=generator, dtype=torch.float64)
    scales = 1.2 ** -torch.arange(100, dtype=torch.float64)
    matrix = matrix * scales if shape[1] == 100 else matrix * scales[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, singular, vectors = torch.svd_lowrank(matrix, q=9, niter=8)
    found = leading_directions(matrix, 9)
    assert torch.allclose(found[0][:6], singular[:6], rtol=1e-3)
    assert torch.allclose((found[1] * vectors).sum(0)[:6].abs(), torch.ones(6).double(), atol=1e-2)
    assert torch.allclose(found[1].T @ found[1], torch.eye(9).double(), atol=1e-9)


def test_values_that_are_all_far_from_0_do_not_hide_how_they_differ():
    """A layer's inputs may have a mean that is a thousand times their spread."""
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(500, 100, generator=generator) * torch.logspace(0, -1, 100) + 500
    truth = torch.linalg.svdvals(matrix.double())
    found = leading_directions(matrix, 72)[0]
    assert torch.allclose(found[:10].double(), truth[:10], rtol=1e-3)


def test_a_matrix_of_few_directions_has_no_more():
    matrix = torch.ones(6, 30) * torch.arange(1.0, 7.0)[:, None]
    singular, vectors = leading_directions(matrix, 3)
    assert torch.allclose(singular, torch.tensor([(30 * 91.0) ** 0.5, 0.0, 0.0]), atol=0.05)
    assert torch.allclose(vectors.T @ vectors, torch.eye(3), atol=1e-5)


def test_kept_curvature_does_without_the_global_random_state(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 4), nn.Tanh(), nn.Linear(4, 2))
    task = Task(model, nn.CrossEntropyLoss(), TensorDataset(torch.randn(50, 60), torch.arange(50) % 2))

    def used(*_):
        raise AssertionError("the global random state was seeded")

    monkeypatch.setattr(torch, "manual_seed", used)
    first = cache(task, model, find_slices(model), range(50))
    torch.rand(3)
    state = torch.get_rng_state()
    again = cache(task, model, find_slices(model), range(50))
    assert all(torch.equal(one.dense, other.dense) for one, other in zip(first.rows, again.rows, strict=True))
    assert torch.equal(first.factors[0].input_eigenvectors, again.factors[0].input_eigenvectors)
    assert torch.equal(state, torch.get_rng_state())
