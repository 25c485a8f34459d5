"""Going backwards from given derivatives: what torch says, without what torch imports for it."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from excise.curvature.backwards import pulled_back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_bits_as_with_given_derivatives(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    outputs, weights = model(torch.randn(4, 5, dtype=dtype)), list(model.parameters())
    cotangents = torch.randn(4, 3, dtype=dtype)
    truth = torch.autograd.grad(outputs, weights, cotangents, retain_graph=True)
    with torch.no_grad():
        found = pulled_back(outputs, weights, cotangents)
    for one, other in zip(found, truth, strict=True):
        assert torch.equal(one, other)


def test_nothing_to_go_back_to():
    assert pulled_back(torch.ones(1), [], torch.ones(1)) == ()


FORGET = """
import sys, torch, excise
data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
task = excise.Task(model, torch.nn.CrossEntropyLoss(), data, data, weight_decay=0.01)
excise.Unlearner(task, excise.Step(), guard=None).forget([0]).certificate
print("sympy" in sys.modules)
"""


@pytest.mark.slow
def test_a_step_does_not_wait_for_symbolic_shapes():
    """Whose import takes a second of every process, as long as a pass over 200,000 samples of a small network."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORGET], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
