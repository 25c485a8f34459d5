"""SGD without torch's class: the same weights to the last bit, and no compiler that is waited for."""

import subprocess
import sys

import pytest
import torch

from excise.training.sgd import SGD

FIT_AND_FORGET = """
import sys, torch, excise
from torch.utils.data import TensorDataset
torch.manual_seed(0)
inputs = torch.randn(200, 6)
labels = inputs[:, :3].argmax(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
train, test = (TensorDataset(inputs[part], labels[part]) for part in (slice(140), slice(140, None)))
task = excise.Task(model, torch.nn.CrossEntropyLoss(), train, test, weight_decay=1e-3)
task = task.with_model(excise.fit(task, epochs=20).model)
done = excise.Unlearner(task, excise.Predicted(settle=True)).forget([3])
print("sympy" in sys.modules, "torch._dynamo" in sys.modules, "gentle pass" in done.shortened)
"""


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_are_those_of_torchs_optimiser(momentum, weight_decay, foreach):
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 2), (4,), (2,))]
    theirs = [weight.detach().clone().requires_grad_() for weight in ours]
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay, "foreach": foreach}
    both = SGD(iter(ours), **options), torch.optim.SGD(theirs, **options)
    for number in range(5):
        for optimizer, weights in zip(both, (ours, theirs), strict=True):
            optimizer.zero_grad()
            used = weights if number % 2 else weights[:2]  # the last has no gradient in every other step
            sum((weight**2).sum().sin() for weight in used).backward()
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            optimizer.step()
        assert ours[2].grad is None or number % 2
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gradients_of_an_embedding_may_be_sparse():
    found = []
    for kind in (SGD, torch.optim.SGD):
        table = torch.nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2))
        optimizer = kind(table.parameters(), lr=0.5)
        table(torch.tensor([1, 3, 3])).sum().backward()
        optimizer.step()
        found.append(table.weight.detach())
    assert torch.equal(*found)
    assert found[0][0].tolist() == [1.0, 1.0]


def test_training_and_forgetting_do_not_wait_for_a_compiler():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIT_AND_FORGET], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "False", "True"]
