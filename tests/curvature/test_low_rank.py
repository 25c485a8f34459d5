"""Leading directions: those of torch's own routine, without the random state that threads share."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.curvature.kfac import cache
from excise.curvature.low_rank import leading_directions
from excise.slices.slices import find_slices


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (15, 15)])
def test_they_are_those_of_torch(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, singular, vectors = torch.svd_lowrank(matrix, q=9, niter=4)
    found = leading_directions(matrix, 9)
    assert torch.allclose(found[0], singular, atol=1e-5)
    assert torch.allclose(found[1], vectors, atol=1e-4)


def test_the_largest_of_a_dense_decomposition():
    matrix = torch.randn(30, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix = matrix @ torch.diag(2.0 ** -torch.arange(20, dtype=torch.float64))
    assert torch.allclose(leading_directions(matrix, 12)[0][:6], torch.linalg.svdvals(matrix)[:6])


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
