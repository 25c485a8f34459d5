"""Models that can't be worked with: refused where the task is made, with what to do."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from excise import Task
from excise.errors import InputError

DATA = TensorDataset(torch.randn(6, 3), torch.arange(6) % 2)


def network():
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def pruned():
    model = network()
    prune.random_unstructured(model[0], "weight", 0.5)
    return model


def expanded():
    model = network()
    model[0].bias = nn.Parameter(torch.zeros(1).expand(3))
    return model


def in_one_place():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].weight = nn.Parameter(model[0].weight.data.T)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "no weights yet in 0, a LazyLinear; run it on a batch"),
        (pruned, r"pruned in 0 by hooks.*prune\.remove"),
        (lambda: torch.jit.script(network()), "pass the model that it was made from"),
        (expanded, r"0\.bias of which several entries share one place"),
        (in_one_place, r"0\.weight and 1\.weight in one place in memory"),
    ],
    ids=["lazy", "pruned", "scripted", "expanded", "in one place"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_is_refused_with_the_remedy(make, words):
    with pytest.raises(InputError, match=words):
        Task(make(), nn.CrossEntropyLoss(), DATA)


def lazy_that_was_run():
    model = nn.Sequential(nn.LazyLinear(2))
    model(DATA.tensors[0])
    return model


def made_permanent():
    model = pruned()
    prune.remove(model[0], "weight")
    return model


def parts_of_one_memory():
    """As libraries have it that keep all weights in a row: apart, though in one storage."""
    model, memory = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)), torch.randn(15)
    model[0].weight, model[1].weight = nn.Parameter(memory[:9].view(3, 3)), nn.Parameter(memory[9:].view(2, 3))
    return model


@pytest.mark.parametrize("make", [network, lazy_that_was_run, made_permanent, parts_of_one_memory])
def test_is_taken(make):
    Task(make(), nn.CrossEntropyLoss(), DATA)
