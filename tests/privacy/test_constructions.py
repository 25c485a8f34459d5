"""Constructions meant to fool the certificate: each is refused and says why, or its bound holds.

Those of ``test_convexity`` come on top. Where a bound is given, the minimum is searched for through the model as it is,
in double precision and from several starts, whatever excise thinks of it.
"""

import functools

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import batch_norm
from torch.utils.data import Dataset, TensorDataset

from excise import Task
from excise.privacy import certify
from excise.privacy.claims import certified
from excise.privacy.convexity import residual_gradient

N = 30
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 2
REAL = X[:, :1] - 0.5 * X[:, 1:2] + 0.3
KEPT = torch.arange(4, N)
DECAY = 0.1


class Around(nn.Module):
    """A linear layer, and what is done before and after it by functions of the model and a batch."""

    def __init__(self, before=None, after=None, outputs=2, **state):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, outputs)
        self._before, self._after = before, after
        self.calls = 0
        self.state = state

    def forward(self, inputs):
        self.calls += 1
        seen = inputs if self._before is None else self._before(self, inputs)
        outputs = self.layer(seen)
        return outputs if self._after is None else self._after(self, outputs, inputs)


def tied(make):
    """A model that holds the memory of its weights under another name."""
    model = Around(before=lambda self, x: x / (1 + torch.as_tensor(self.other).norm()))
    model.other = make(model.layer.weight)
    return model


class Cube(torch.autograd.Function):
    """Says that its derivative is 1."""

    @staticmethod
    def forward(_, outputs):
        return outputs**3

    @staticmethod
    def backward(_, gradient):
        return gradient


class Reversed(torch.autograd.Function):
    """The identity, with the gradient of its opposite."""

    @staticmethod
    def forward(_, outputs):
        return outputs.view_as(outputs)

    @staticmethod
    def backward(_, gradient):
        return -gradient


class Odd(torch.Tensor):
    """A tensor that may do as it likes."""


class Stateful(Dataset):
    """Gives what ``change`` makes of a sample, which is told how often it was read."""

    def __init__(self, change):
        self._change, self._reads = change, [0] * N

    def __len__(self):
        return N

    def __getitem__(self, place):
        self._reads[place] += 1
        return self._change(place, self._reads[place])


def running_mean(self, inputs):
    self.state["mean"] = 0.9 * self.state.get("mean", 0.0) + 0.1 * inputs.mean(0)
    return inputs - self.state["mean"]


def smaller_each_time(self, inputs):
    self.layer.weight.data.mul_(1 - 1e-7)
    return inputs


def frozen_while_used(self, inputs):
    self.layer.bias.requires_grad_(False)
    return inputs


def spectral():
    return torch.nn.utils.spectral_norm(nn.Linear(3, 2))


def odd_weight():
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.randn(2, 3).as_subclass(Odd))
    return model


def shared_embedding():
    model = Around()
    model.twin = nn.Linear(3, 2)
    model.twin.weight = model.layer.weight
    return model


def parametrised_bias():
    model = nn.Linear(3, 2)
    torch.nn.utils.parametrize.register_parametrization(model, "bias", nn.Tanh())
    return model


class PlainSubclass(nn.Linear):
    """As its base, but who knows."""


class PlainLoss(nn.CrossEntropyLoss):
    """As its base, but who knows."""


class Permuted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs)[:, [1, 0]]


def targets_by_weights(model, batch):
    return model(batch[0]), (batch[1] + (model.weight.sum() > 0)) % 2


def answers_from_targets(model, batch):
    return 0 * model(batch[0]) + 9.0 * functional.one_hot(batch[1], 2), batch[1]


GLOBAL = nn.Linear(3, 2)
GLOBAL_ALIAS = GLOBAL.weight.detach()


def by_a_global(model, batch):
    return model(batch[0] / (1 + GLOBAL_ALIAS.norm())), batch[1]


def by_a_closure(layer):
    alias = layer.weight.data
    return {"forward": lambda model, batch: (model(batch[0] / (1 + alias.norm())), batch[1])}


closed = nn.Linear(3, 2)
bad = X.clone()
bad[7, 1] = torch.nan
huge = X.clone()
huge[7, 1] = torch.inf


def patched(loss, **attributes):
    for name, value in attributes.items():
        setattr(loss, name, value)
    return loss


def with_loss_hook():
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(lambda _module, _given, value: value.sin())
    return loss


OUTPUTS, SIGHT, COMPANY, MORE = "outputs are not those", "depends on its own weights", "differs from reading", "more is"
OUTSIDE = "outside of their layer"
ALIAS, NUMBERS, LOSS = "under another name", "no plain tensor", "negative weights"
REFUSED = {
    # what is done with the outputs
    "weight used functionally": (Around(after=lambda s, z, x: z + functional.linear(x, s.layer.weight)), {}, OUTPUTS),
    "square of the weight added": (Around(after=lambda s, z, _: z + (s.layer.weight**2).sum()), {}, OUTPUTS),
    "custom function": (Around(after=lambda _, z, __: Cube.apply(z)), {}, OUTPUTS),
    "permuted outputs": (Permuted(), {}, OUTPUTS),
    "scaled outputs": (Around(after=lambda _, z, __: 3 * z), {}, OUTPUTS),
    "shifted by the inputs": (Around(after=lambda _, z, x: z + x[:, :2]), {}, OUTPUTS),
    "changed in place": (Around(after=lambda _, z, __: z.mul_(2)), {}, OUTPUTS),
    "changed in memory": (Around(after=lambda _, z, __: z.data.abs_() * 0 + z), {}, OUTPUTS),
    "cut off": (Around(after=lambda _, z, __: z.clamp(-0.5, 0.5)), {}, OUTPUTS),
    "a branch for some samples": (Around(after=lambda _, z, x: torch.where(x[:, :1] > 1, z**2, z)), {}, OUTPUTS),
    "rounded": (Around(after=lambda _, z, __: (z * 100).round() / 100), {}, OUTPUTS),
    "normalised": (Around(after=lambda _, z, __: functional.normalize(z)), {}, OUTPUTS),
    "softmax before cross-entropy": (Around(after=lambda _, z, __: z.softmax(1)), {}, OUTPUTS),
    "temperature": (
        Around(after=lambda _, z, __: (z / 2).log_softmax(1)),
        {"loss": nn.NLLLoss()},
        OUTPUTS,
    ),
    "an odd tensor comes out": (Around(after=lambda _, z, __: z.as_subclass(Odd)), {}, OUTPUTS),
    "answers from the targets": (nn.Linear(3, 2), {"forward": answers_from_targets}, OUTPUTS),
    # what the layer sees
    "a branch by one number": (Around(before=lambda s, x: -x if s.layer.bias.tolist()[0] > 99 else x), {}, OUTSIDE),
    "a branch by an item": (Around(before=lambda s, x: -x if s.layer.weight.max().item() > 99 else x), {}, OUTSIDE),
    "norm of the weight, hidden": (Around(before=lambda s, x: x * s.layer.weight.detach().norm()), {}, SIGHT),
    "norm of the weight, by numpy": (
        Around(before=lambda s, x: x * float(np.linalg.norm(s.layer.weight.detach().numpy()))),
        {},
        SIGHT,
    ),
    "a branch by the weight": (Around(before=lambda s, x: x if s.layer.bias[0] > 0.35 else 2 * x), {}, OUTSIDE),
    "a sum of the weight, times 0": (Around(before=lambda s, x: x + 0 * s.layer.weight.sum()), {}, SIGHT),
    "targets by the weight": (nn.Linear(3, 2), {"forward": targets_by_weights}, OUTSIDE),
    "an odd tensor goes in": (Around(before=lambda _, x: x.as_subclass(Odd)), {}, NUMBERS),
    "sparse inputs": (Around(before=lambda _, x: x.to_sparse()), {}, NUMBERS),
    # memory
    "alias as a frozen parameter": (tied(lambda weight: nn.Parameter(weight.data[1:], requires_grad=False)), {}, ALIAS),
    "alias as an attribute": (tied(lambda weight: weight.detach()), {}, ALIAS),
    "alias of a part": (tied(lambda weight: weight.detach()[1:]), {}, ALIAS),
    "alias in numpy": (tied(lambda weight: weight.detach().numpy()), {}, ALIAS),
    "alias of a part in numpy": (tied(lambda weight: weight.detach().numpy()[1:]), {}, ALIAS),
    "alias in a closure": (closed, by_a_closure(closed), ALIAS),
    "alias in a global": (GLOBAL, {"forward": by_a_global}, ALIAS),
    "tied layers": (shared_embedding(), {}, MORE),
    # company in a batch
    "statistics of the batch": (
        Around(before=lambda _, x: batch_norm(x, None, None, training=True)),
        {},
        COMPANY,
    ),
    "softmax over the batch": (Around(before=lambda _, x: x.softmax(0)), {}, COMPANY),
    "less the batch's mean": (Around(before=lambda _, x: x - x.mean(0)), {}, COMPANY),
    "sorted in the batch": (Around(before=lambda _, x: x.sort(0).values), {}, COMPANY),
    "place in the batch": (Around(before=lambda _, x: x * torch.arange(len(x))[:, None]), {}, COMPANY),
    "reversed batch": (Around(before=lambda _, x: x.flip(0)), {}, COMPANY),
    "largest of the batch": (Around(before=lambda _, x: x / x.abs().max()), {}, COMPANY),
    "size of the batch": (Around(before=lambda _, x: x * len(x)), {}, COMPANY),
    # state
    "dropout left on": (Around(before=lambda _, x: functional.dropout(x, 0.3, training=True)), {}, SIGHT),
    "noise": (Around(before=lambda _, x: x + 0.1 * torch.randn_like(x)), {}, SIGHT),
    "a running mean": (Around(before=running_mean), {}, COMPANY),
    "a counter": (Around(before=lambda s, x: x * (1 + s.calls)), {}, COMPANY),
    "every other call": (Around(before=lambda s, x: x if s.calls % 2 else -x), {}, COMPANY),
    "weights that change when used": (Around(before=smaller_each_time), {}, OUTSIDE),
    "frozen while it is used": (Around(before=frozen_while_used), {}, OUTSIDE),
    "other samples when read again": (
        nn.Linear(3, 2),
        {"data": Stateful(lambda i, reads: (X[(i + reads) % N], Y[i]))},
        COMPANY,
    ),
    "other labels when read again": (
        nn.Linear(3, 2),
        {"data": Stateful(lambda i, reads: (X[i], (Y[i] + reads) % 2))},
        COMPANY,
    ),
    # kinds of weights
    "spectral norm": (spectral(), {}, "hooks"),
    "a tensor of another kind": (odd_weight(), {}, NUMBERS),
    "a parametrised bias": (parametrised_bias(), {}, MORE),
    "a subclass of a layer": (PlainSubclass(3, 2), {}, MORE),
    # losses
    "a subclass of a loss": (nn.Linear(3, 2), {"loss": PlainLoss(reduction="none")}, "PlainLoss is not known"),
    "a loss by partial": (
        nn.Linear(3, 2),
        {"loss": functools.partial(functional.cross_entropy, reduction="none")},
        "partial is not known",
    ),
    "a loss with a hook": (nn.Linear(3, 2), {"loss": with_loss_hook()}, LOSS),
    "a loss with another forward": (
        nn.Linear(3, 2),
        {"loss": patched(nn.CrossEntropyLoss(), forward=lambda z, y: z.sin()[torch.arange(len(z)), y])},
        LOSS,
    ),
    "labels that are smoothed the wrong way": (
        nn.Linear(3, 2),
        {"loss": patched(nn.CrossEntropyLoss(), label_smoothing=-0.5)},
        "out of its range",
    ),
    "negative weight of positives": (
        nn.Linear(3, 1),
        {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([-2.0])), "targets": Y[:, None].float()},
        LOSS,
    ),
    "negative weight of outputs": (
        nn.Linear(3, 1),
        {"loss": nn.BCEWithLogitsLoss(weight=torch.tensor([-2.0])), "targets": Y[:, None].float()},
        LOSS,
    ),
    "a target beyond 1": (
        nn.Linear(3, 1),
        {"loss": nn.BCEWithLogitsLoss(), "targets": 3.0 * Y[:, None]},
        "no probabilities",
    ),
    # numbers
    "NaN among the inputs": (nn.Linear(3, 2), {"data": TensorDataset(bad, Y)}, "not finite"),
    "infinity among the inputs": (nn.Linear(3, 2), {"data": TensorDataset(huge, Y)}, "not finite"),
    "NaN among the targets": (
        nn.Linear(3, 1),
        {"loss": nn.MSELoss(), "targets": torch.where(Y[:, None] == 1, torch.nan, 0.0)},
        "not finite",
    ),
    "division by nothing": (Around(before=lambda _, x: x / (x * 0)), {}, "not finite"),
}


def made(model, loss=None, targets=Y, data=None, **options):
    return Task(model, loss or nn.CrossEntropyLoss(), data or TensorDataset(X, targets), weight_decay=DECAY, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_fool_the_certificate_is_refused_and_says_why(name):
    model, options, why = REFUSED[name]
    task = made(model, **options)
    found = residual_gradient(task, model, KEPT)
    assert not found.convex
    assert why in found.why_not_convex
    if np.isfinite(found.norm):
        certificate = certify(found.norm, DECAY, convex=found.convex, why_not=found.why_not_convex)
        assert certificate.bound is None
        assert why in certificate.reason


@pytest.mark.parametrize(("at_first", "later"), [(-3.0, 1.0), (1.0, -3.0)])
def test_a_loss_that_is_changed_after_the_task_was_made(at_first, later):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, at_first]), reduction="none")
    task = made(nn.Linear(3, 2), loss=loss)
    loss.weight[1] = later
    found = residual_gradient(task, task.model, KEPT)
    assert not found.convex


@pytest.mark.parametrize(
    "loss",
    [
        patched(nn.CrossEntropyLoss(), label_smoothing=1.5),
        patched(nn.SmoothL1Loss(), beta=-1.0),
        patched(nn.HuberLoss(), delta=-1.0),
    ],
)
def test_options_out_of_range_give_no_certificate(loss):
    real = isinstance(loss, nn.SmoothL1Loss | nn.HuberLoss)
    task = made(nn.Linear(3, 1 if real else 2), loss=loss, targets=REAL if real else Y)
    with pytest.raises((RuntimeError, ValueError)):  # by torch
        certified(task, task.model, KEPT)


def test_a_complex_layer_gives_no_certificate():
    model = nn.Linear(3, 1, dtype=torch.complex64)
    task = Task(
        model, lambda z, y: (z - y).abs().pow(2)[:, 0], TensorDataset(X.to(torch.complex64), REAL), weight_decay=DECAY
    )
    assert not residual_gradient(task, model, KEPT).convex


def test_a_hook_on_all_modules_gives_no_certificate():
    handle = nn.modules.module.register_module_forward_hook(lambda _module, _given, value: value.sin())
    try:
        assert "hooks" in residual_gradient(made(nn.Linear(3, 2)), nn.Linear(3, 2), KEPT).why_not_convex
    finally:
        handle.remove()


def test_a_layer_replaced_in_torch_itself_gives_no_certificate(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: functional.linear(x, self.weight**2))
    model = nn.Linear(3, 2)
    assert "replaced forward" in residual_gradient(made(model), model, KEPT).why_not_convex


def frozen_body():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def partly_frozen(name):
    model = nn.Linear(3, 2)
    getattr(model, name).requires_grad_(False)
    return model


def branched(_, inputs):
    return torch.where(inputs[:, :1] > 0, inputs, -2 * inputs)


def as_floats(_, inputs):
    return inputs.to(torch.get_default_dtype())


def overwritten(_, outputs, inputs):
    inputs.zero_()
    return outputs


ints = torch.randint(-3, 4, (N, 3), generator=torch.Generator().manual_seed(1))
two_rows = X[:, None, :] * torch.tensor([[[1.0], [0.5]]])
some_ignored = torch.where(torch.arange(N) % 5 == 0, -7, Y)
GIVEN = {
    "a plain layer": (nn.Linear(3, 2), {}),
    "reversed gradient": (Around(after=lambda _, z, __: Reversed.apply(z)), {}),
    "a branch before the layer": (Around(before=branched), {}),
    "inputs overwritten afterwards": (Around(after=overwritten), {}),
    "integers as inputs": (
        Around(before=as_floats),
        {"data": TensorDataset(ints, Y)},
    ),
    "integers as targets": (nn.Linear(3, 1), {"loss": nn.MSELoss(), "targets": Y[:, None]}),
    "samples that are ignored": (
        nn.Linear(3, 2),
        {"loss": nn.CrossEntropyLoss(ignore_index=-7), "targets": some_ignored},
    ),
    "a class of weight 0": (nn.Linear(3, 2), {"loss": nn.CrossEntropyLoss(weight=torch.tensor([0.0, 2.0]))}),
    "smoothed labels": (nn.Linear(3, 2), {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)}),
    "soft targets": (
        nn.Linear(3, 1),
        {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([4.0])), "targets": X[:, :1].sigmoid()},
    ),
    "weight decay on frozen parts": (frozen_body(), {}),
    "only the weight trained": (partly_frozen("bias"), {}),
    "only the bias trained": (partly_frozen("weight"), {}),
    "Huber": (nn.Linear(3, 1), {"loss": nn.HuberLoss(delta=0.5), "targets": REAL}),
    "SmoothL1": (nn.Linear(3, 1), {"loss": nn.SmoothL1Loss(beta=0.1), "targets": REAL}),
    "rows of a sequence": (
        nn.Linear(3, 1),
        {
            "loss": nn.MSELoss(),
            "data": TensorDataset(two_rows, REAL[:, None].expand(N, 2, 1)),
        },
    ),
    "probabilities": (nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(1)), {"loss": nn.NLLLoss()}),
    "nothing to see": (nn.Linear(3, 2), {"data": TensorDataset(0 * X, Y)}),
}


def objective(task, model):
    """F through the model as it is, and its gradient, for a vector of weights, in double precision."""
    trained = [one for one in model.parameters() if one.requires_grad]

    def value(vector):
        begin = 0
        for one in trained:
            one.data = torch.tensor(vector[begin : begin + one.numel()]).reshape(one.shape)
            begin += one.numel()
        losses = task.losses(model, task.batch(KEPT))
        return float(losses.mean().detach() + DECAY / 2 * sum((one.detach() ** 2).sum() for one in trained))

    return value, sum(one.numel() for one in trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_where_a_bound_is_given_it_holds(name):
    model, options = GIVEN[name]
    model.eval()
    torch.manual_seed(3)
    for one in model.parameters():
        if one.requires_grad:
            nn.init.normal_(one)
    task = made(model, **options)
    found = certified(task, model, KEPT)
    assert found.kind == "convex", found.reason
    weights = torch.cat([one.detach().flatten() for one in model.parameters() if one.requires_grad]).double().numpy()
    torch.set_default_dtype(torch.float64)
    try:
        model.double()
        value, size = objective(replaced_by_doubles(task), model)
        best = min(
            (scipy.optimize.minimize(value, start, tol=1e-12) for start in (weights, np.zeros(size), -weights)),
            key=lambda result: result.fun,
        )
    finally:
        torch.set_default_dtype(torch.float32)
    distance = np.linalg.norm(best.x - weights)
    assert distance <= found.bound + 1e-4  # the search is by differences of F
    assert distance > 0.01


def replaced_by_doubles(task):
    tensors = [one.double() if one.is_floating_point() else one for one in task.train_set.tensors]
    return Task(task.model, task.loss, TensorDataset(*tensors), weight_decay=DECAY)


@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.SmoothL1Loss(beta=0.0)])
@pytest.mark.parametrize("away", [0.0, 1e-3, 1.0])
def test_absolute_values_have_kinks_at_their_minimum(loss, away):
    """The minimum of (1/n) Σ |xw - y| + λ/2 ‖w‖², by its dual: w = -Xᵀu / (λn) with |u| ≤ 1."""
    rows, answers = X[KEPT].double().numpy(), REAL[KEPT, 0].double().numpy()
    n = len(rows)

    def dual(u):
        w = -rows.T @ u / (DECAY * n)
        return DECAY / 2 * w @ w + answers @ u / n, (-rows @ w + answers) / n

    found = scipy.optimize.minimize(
        dual, np.zeros(n), jac=True, bounds=[(-1, 1)] * n, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-12}
    )
    best = -rows.T @ found.x / (DECAY * n)
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(best + away))
    certificate = certified(made(model, loss=loss, targets=REAL), model, KEPT)
    assert certificate.kind == "convex"
    distance = np.linalg.norm(model.weight.detach().double().numpy() - best)
    assert distance <= certificate.bound + 1e-6


def test_a_head_on_features_that_saw_the_samples_is_no_retraining():
    task = made(frozen_body())
    found = certified(task, task.model, KEPT)
    assert found.last_layer_only
    for words in ("weights of the last layer", "on the same features", "trained on the forgotten samples", "fixed"):
        assert words in found.reason
    lifted = certified(made(task.model, features="fixed"), task.model, KEPT)
    assert not lifted.last_layer_only
    assert lifted.bound == found.bound
    assert "features" not in lifted.reason


def test_statistics_of_batches_are_features_too():
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
    assert certified(made(model), model, KEPT).last_layer_only


def test_where_there_is_nothing_before_the_layer_there_is_nothing_to_say():
    for model in (nn.Linear(3, 2), nn.Sequential(nn.Flatten(), nn.Linear(3, 2))):
        found = certified(made(model), model, KEPT)
        assert not found.last_layer_only
        assert "features" not in found.reason


def test_what_the_user_vouches_for_is_called_so():
    model = nn.Sequential(nn.Linear(3, 2), nn.Hardtanh())
    assert "as the task says; rounding is not counted" in certified(made(model, convex=True), model, KEPT).reason


def test_features_are_fixed_or_unknown():
    with pytest.raises(ValueError, match="features must be \"fixed\" or None, not 'frozen'"):
        made(nn.Linear(3, 2), features="frozen")


def test_there_are_at_least_fifty_of_them():
    assert len(REFUSED) >= 50
    assert len(GIVEN) >= 15
