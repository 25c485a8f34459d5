"""A small classifier, and its losses and gradients with nothing of the package in between."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, fit

N, FORGET = 40, [3, 8, 21]
ENTROPY = nn.CrossEntropyLoss(reduction="none")


class OfSquares(nn.Conv2d):
    """A convolution of the four inputs as a picture of 2 × 2."""

    def forward(self, x):
        return super().forward(x.view(-1, 1, 2, 2)).flatten(1)


def network(seed=0, *, convolution=False):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first = OfSquares(1, 6, 2) if convolution else nn.Linear(4, 6)
        return nn.Sequential(first, nn.Tanh(), nn.Linear(6, 3)).double()


def classifier(*, convolution=False):
    """A trained one, with held-out samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 4, generator=generator).double()
    rule = torch.randn(4, 3, generator=generator).double()
    others = torch.randn(30, 4, generator=generator).double()
    data, held_out = (TensorDataset(x, (x @ rule).argmax(1)) for x in (inputs, others))
    start = Task(network(convolution=convolution), ENTROPY, data, weight_decay=0.02)
    return Task(fit(start, epochs=100, lr=0.1).model, ENTROPY, data, held_out, weight_decay=0.02)


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def losses_of(task, model, ids):
    inputs, targets = (tensor[torch.as_tensor(ids)] for tensor in task.train_set.tensors)
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def mean_gradient(task, model, ids):
    """Gradient of the mean loss, in one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(losses_of(task, model, ids).mean(), model.parameters())])
