"""No bound where convexity is not proven: constructions that fooled the certificate once, and honest ones."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from excise import Descent, Task, Unlearner, exact_fit
from excise.privacy.convexity import residual_gradient

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2


def linear(outputs=2):
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def found(model, loss=None, targets=Y, data=None, **options):
    task = Task(model, loss or nn.CrossEntropyLoss(), data or TensorDataset(X, targets), weight_decay=0.1, **options)
    return residual_gradient(task, model, torch.arange(5, 40))


def test_relu_that_is_the_identity_on_the_first_samples():
    """Its bound was 0.0098 and the true distance 1.998."""
    inputs = torch.tensor([[1.0]] * 6 + [[-1.0]] * 5)
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    data = TensorDataset(inputs, torch.ones(11, 1))
    task = Task(nn.Sequential(layer, nn.ReLU()), nn.MSELoss(), data, weight_decay=1e-3)
    done = Unlearner(task, Descent(steps=5)).forget([3, 4])
    assert done.certificate.kind == "heuristic"
    assert done.certificate.bound is None


class Robust(nn.MSELoss):
    def forward(self, outputs, targets):
        return 1 - torch.exp(-super().forward(outputs, targets))


class Squared(nn.Linear):
    def forward(self, inputs):
        return nn.functional.linear(inputs, self.weight**2, self.bias)


class WeightInItsInput(nn.Module):
    """What the layer sees is divided by a norm of its weights, which autograd is not told."""

    def __init__(self, *, hidden):
        super().__init__()
        self.layer, self._hidden = linear(), hidden

    def forward(self, inputs):
        weight = self.layer.weight.detach() if self._hidden else self.layer.weight
        return self.layer(inputs / weight.norm())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.layer(self.layer(inputs))


class Augmented(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, place):
        return X[place] + 0.1 * torch.randn(3), Y[place]


def with_hook():
    model = linear()
    model.register_forward_pre_hook(lambda module, args: (args[0] * module.weight.detach().sum(),))
    return model


def with_own_forward():
    model = linear()
    model.forward = lambda inputs: nn.functional.linear(inputs, model.weight.tanh())
    return model


@pytest.mark.parametrize(
    ("model", "loss", "options", "why"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Hardtanh()), None, {}, "outputs are not those"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True)), None, {}, "outputs are not those"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), None, {}, "more is trained"),
        (nn.Linear(3, 1), Robust(reduction="none"), {"targets": Y[:, None].float()}, "Robust is not known"),
        (Squared(3, 2), None, {}, "more is trained than one linear layer"),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), None, {}, "more is trained"),
        (WeightInItsInput(hidden=True), None, {}, "depends on its own weights"),
        (WeightInItsInput(hidden=False), None, {}, "depends on its own weights"),
        (Twice(), None, {}, "not called once"),
        (with_hook(), None, {}, "hooks"),
        (with_own_forward(), None, {}, "replaced forward"),
        (linear(), None, {"data": Augmented()}, "from reading to reading"),
        (linear(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, -0.5])), {}, "negative weights"),
        (linear(), None, {"targets": torch.tensor([[1.5, -0.5]]).expand(40, 2)}, "no probabilities"),
        (linear(), None, {"forward": lambda model, batch: (model(batch[0]) ** 3, batch[1])}, "outputs are not those"),
        (linear(), lambda out, y: nn.functional.cross_entropy(out, y, reduction="none"), {}, "function is not known"),
    ],
)
def test_what_is_not_proven_is_not_claimed(model, loss, options, why):
    result = found(model, loss, **options)
    assert not result.convex
    assert why in result.why_not_convex


def frozen(model, first):
    for layer in list(model)[:first]:
        layer.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "loss", "options"),
    [
        (linear(), None, {}),
        (linear(), nn.CrossEntropyLoss(weight=torch.tensor([0.3, 2.0]), label_smoothing=0.1), {}),
        (linear(), nn.functional.cross_entropy, {}),
        (linear(), None, {"targets": torch.tensor([[0.5, 0.5]]).expand(40, 2)}),
        (nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(dim=1)), nn.NLLLoss(), {}),
        (linear(1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), {"targets": Y[:, None].float()}),
        (linear(1), nn.MSELoss(), {"targets": X[:, :1]}),
        (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), nn.HuberLoss(), {"targets": X[:, 0]}),
        (frozen(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 1), None, {}),
    ],
)
def test_what_is_convex_is_found_to_be(model, loss, options):
    """Against autograd in double precision."""
    result = found(model, loss, **options)
    assert result.why_not_convex is None
    double = Task(
        model.double(),
        loss or nn.CrossEntropyLoss(),
        TensorDataset(X.double(), as_double(options.get("targets", Y))),
        weight_decay=0.1,
    )
    value = double.losses(double.model, double.batch(range(5, 40))).sum() / double.mass(range(5, 40))
    weights = [weight for weight in double.model.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(value + 0.05 * sum((weight**2).sum() for weight in weights), weights)
    model.float()
    assert result.norm == pytest.approx(float(torch.cat([one.flatten() for one in gradients]).norm()), rel=1e-5)


def as_double(targets):
    return targets.double() if targets.is_floating_point() else targets


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_never_below_the_true_distance(seed):
    generator = torch.Generator().manual_seed(seed)
    scale, decay = 10 ** (seed % 4 - 1.0), 10.0 ** -(1 + seed % 4)
    inputs = scale * torch.randn(60, 4, generator=generator) + (100 if seed % 5 == 4 else 0)
    targets = torch.randint(3, (60,), generator=generator)
    torch.manual_seed(seed)
    start = Task(nn.Linear(4, 3), nn.CrossEntropyLoss(), TensorDataset(inputs, targets), weight_decay=decay)
    task = start.with_model(exact_fit(start, tolerance=1e-6).model)
    gone = [3, 10, 11]
    done = Unlearner(task, Descent(steps=1 + seed % 3, selection="all")).forget(gone)
    truth = exact_fit(start, ids=[i for i in range(60) if i not in gone], tolerance=1e-9).model
    distance = torch.cat([(a - b).flatten() for a, b in zip(done.model.parameters(), truth.parameters(), strict=True)])
    assert done.certificate.kind == "convex"
    assert float(distance.norm()) <= done.certificate.bound * (1 + 1e-3) + 1e-6


def test_a_task_may_say_what_it_knows():
    assert found(nn.Sequential(nn.Linear(3, 2), nn.Hardtanh()), convex=True).convex
    assert not found(linear(), convex=False).convex


def test_batch_statistics_of_the_model_are_left_alone():
    model = nn.Sequential(nn.BatchNorm1d(3).requires_grad_(False), nn.Linear(3, 2)).train()
    task = Task(model, nn.CrossEntropyLoss(), TensorDataset(X, Y), weight_decay=0.1)
    done = Unlearner(task, guard=None).forget([1])
    assert done.certificate.kind == "convex"
    assert model[0].running_mean.eq(0).all()
    assert model[0].num_batches_tracked == 0
