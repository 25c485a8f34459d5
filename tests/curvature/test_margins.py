"""Margins and their gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import SampleWeighted, Task
from excise.curvature.margins import has_margins, margin_of, margin_rows, margins
from excise.evidence.attacks import margin as margin_of_attacks
from excise.slices import find_slices


def task(loss, *, classes=3, double=True):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, classes))
    inputs = torch.randn(12, 4, generator=generator)
    data = TensorDataset(inputs.double() if double else inputs, torch.arange(12) % classes)
    return Task(model.double() if double else model, loss, data)


def test_margins_are_those_of_the_attacks():
    made = task(nn.CrossEntropyLoss())
    found = margins(made, made.model, range(12))
    with torch.no_grad():
        outputs = made.model(made.train_set.tensors[0])
    np.testing.assert_allclose(found.values, margin_of_attacks(outputs.numpy(), np.arange(12) % 3), rtol=1e-9)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))])
def test_losses_of_margins_are_the_tasks(loss):
    made = task(loss, double=False)
    with torch.no_grad():
        losses = made.losses(made.model, made.batch(range(12)))
    np.testing.assert_allclose(margins(made, made.model, range(12)).losses, losses, rtol=1e-4)


def test_rows_are_gradients():
    made = task(nn.CrossEntropyLoss())
    found_margins, rows = margin_rows(made, made.model, find_slices(made.model), torch.tensor([2, 7]))
    assert torch.equal(found_margins.values, margins(made, made.model, [2, 7]).values)
    weights = list(made.model.parameters())
    for place, number in enumerate((2, 7)):
        image, label = made.train_set[number]
        found = torch.autograd.grad(margin_of(made.model(image[None]), label[None]).sum(), weights)
        for of_layer, weight, bias in zip(rows, found[::2], found[1::2], strict=True):
            assert torch.allclose(of_layer.dense[place], torch.cat([weight, bias[:, None]], 1))


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (nn.CrossEntropyLoss(), True),
        (nn.CrossEntropyLoss(label_smoothing=0.1), False),
        (nn.MultiMarginLoss(), False),
        (lambda outputs, targets: (outputs[:, 0] - targets) ** 2, False),
    ],
)
def test_which_losses_have_margins(loss, known):
    made = task(loss, double=False)
    assert has_margins(made, made.model) is known


def test_weights_of_samples_count():
    plain = task(nn.CrossEntropyLoss(), double=False)
    inputs, labels = plain.train_set.tensors
    rows = torch.stack([labels.float(), torch.arange(12.0) + 1], 1)
    weighted = Task(plain.model, SampleWeighted(nn.CrossEntropyLoss()), TensorDataset(inputs, rows))
    found = margins(weighted, weighted.model, range(12))
    np.testing.assert_allclose(found.weights / found.weights[0], np.arange(12) + 1, rtol=1e-5)
    np.testing.assert_allclose(found.values, margins(plain, plain.model, range(12)).values)
