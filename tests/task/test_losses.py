"""Torch's losses as users have them: their mean becomes one loss per sample, and other words give the same result."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import Descent, Drift, Step, Task, Unlearner, fit
from excise.errors import InputError


def problem(loss, *, outputs=3, targets=None, seed=0, model=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(90, 4, generator=generator).to(dtype)
    if targets is None:
        targets = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()
    torch.manual_seed(seed)
    network = model or nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs)).to(dtype)
    return Task(network, loss, TensorDataset(inputs, targets), weight_decay=1e-3)


def losses(task):
    return task.losses(task.model, task.batch(range(90))).detach()


WEIGHTS = torch.tensor([0.2, 1.0, 3.5])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": WEIGHTS},
        {"label_smoothing": 0.2},
        {"weight": WEIGHTS, "label_smoothing": 0.2},
        {"ignore_index": 1},
        {"weight": WEIGHTS, "ignore_index": 2},
    ],
)
def test_the_mean_over_the_training_set_is_torchs_own(options):
    loss = nn.CrossEntropyLoss(**options)
    task = problem(loss)
    with torch.no_grad():
        outputs, targets = task.outputs(task.model, task.batch(range(90)))
    assert losses(task).shape == (90,)
    assert losses(task).mean().item() == pytest.approx(loss(outputs, targets).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.MSELoss(), torch.randn(90, 3)),
        (nn.SmoothL1Loss(), torch.randn(90, 3)),
        (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), (torch.randn(90, 3) > 0).float()),
        (functional.mse_loss, torch.randn(90, 3)),
    ],
)
def test_means_of_other_losses(loss, targets):
    task = problem(loss, targets=targets)
    with torch.no_grad():
        outputs, wanted = task.outputs(task.model, task.batch(range(90)))
    assert losses(task).mean().item() == pytest.approx(loss(outputs, wanted).item(), rel=1e-5)


def test_the_loss_that_was_given_is_not_changed():
    loss = nn.CrossEntropyLoss(weight=WEIGHTS)
    losses(problem(loss))
    assert loss.reduction == "mean"
    assert loss.weight.dtype == torch.float32


def test_probabilities_as_targets():
    targets = torch.randn(90, 3).softmax(1)
    task = problem(nn.CrossEntropyLoss(weight=WEIGHTS), targets=targets)
    with torch.no_grad():
        wanted = functional.cross_entropy(task.model(task.train_set.tensors[0]), targets, weight=WEIGHTS)
    assert losses(task).mean().item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [Step(), Step(curvature="ggn"), Drift()], ids=["cached", "ggn", "drift"])
def test_a_model_with_class_weights_forgets(method):
    """The double precision of observations once met single-precision weights, and crashed."""
    task = problem(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none"))
    task = task.with_model(fit(task, epochs=30, lr=0.2, seed=0).model)
    done = Unlearner(task, method).forget([1, 2])
    assert done.forget_loss[1] > done.forget_loss[0]


def forget(task, fitted, method):
    found = Unlearner(task.with_model(fitted), method).forget([3, 5, 8])
    return torch.cat([weight.detach().flatten() for weight in found.model.parameters()]), found.forget_loss


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Step(), Drift(), Step("all", "ggn"), Descent(steps=2)], ids=["step", "drift", "all", "descent"]
)
@pytest.mark.parametrize("weight", [None, WEIGHTS])
def test_log_probabilities_give_the_same_result_as_logits(method, weight):
    """In double precision: truncated conjugate gradients enlarge what rounding leaves of the two."""
    logits = problem(nn.CrossEntropyLoss(weight=weight), dtype=torch.float64)
    plain = fit(logits, epochs=40, lr=0.2, seed=0).model
    with_softmax = nn.Sequential(*copy.deepcopy(list(plain)), nn.LogSoftmax(dim=1))
    words = problem(nn.NLLLoss(weight=weight), model=with_softmax, dtype=torch.float64)
    ours, ours_loss = forget(logits, plain, method)
    theirs, theirs_loss = forget(words, with_softmax, method)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)
    assert ours_loss == pytest.approx(theirs_loss, abs=1e-5)


def test_outputs_that_are_no_log_probabilities_are_refused():
    with pytest.raises(InputError, match=r"NLLLoss, which takes log-probabilities.*nn\.LogSoftmax"):
        losses(problem(nn.NLLLoss()))


def test_a_sum_is_refused():
    with pytest.raises(InputError, match=r'reduction="sum".*reduction="mean"'):
        losses(problem(nn.CrossEntropyLoss(reduction="sum")))


def test_a_mean_of_ones_own_is_refused():
    with pytest.raises(InputError, match="loss must give one value per sample, but gave shape"):
        losses(problem(lambda outputs, targets: functional.cross_entropy(outputs, targets)))


def test_classes_that_all_weigh_nothing_are_refused():
    with pytest.raises(InputError, match="every sample of train_set the weight 0"):
        losses(problem(nn.CrossEntropyLoss(weight=torch.zeros(3))))
