"""Exact forgetting of convex models: at the retrained weights, certified, whatever the loss and the layer."""

import copy
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import TensorDataset

from excise import Exact, InputError, NeverSupportedError, SampleWeighted, Task, Unlearner, exact_fit, fit
from excise.privacy.claims import certified

GONE = [3, 40, 41]


def flat(model):
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters() if weight.requires_grad])


def trained(model, loss, inputs, targets, *, weight_decay=1e-3, precision=torch.float64, **options):
    data = TensorDataset(torch.as_tensor(inputs, dtype=precision), torch.as_tensor(targets))
    task = Task(model.to(precision), loss, data, weight_decay=weight_decay, **options)
    return task.with_model(exact_fit(task, tolerance=1e-12).model)


def cancer():
    inputs, labels = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(inputs), labels


def retrained(task, gone):
    kept = [number for number in range(len(task.train_set)) if number not in set(gone)]
    return exact_fit(task, ids=kept, double=True, tolerance=1e-14).model


def softmax(precision=torch.float64, bias=True):
    inputs, labels = cancer()
    return trained(nn.Linear(30, 2, bias=bias), nn.CrossEntropyLoss(), inputs, labels, precision=precision)


def weighted():
    inputs, labels = cancer()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0], dtype=torch.float64), label_smoothing=0.1)
    return trained(nn.Linear(30, 2), loss, inputs, labels)


def binary():
    inputs, labels = cancer()
    return trained(nn.Linear(30, 1), nn.BCEWithLogitsLoss(), inputs, torch.as_tensor(labels[:, None]).double())


def ridge():
    inputs, _ = cancer()
    return trained(nn.Linear(29, 1), nn.MSELoss(), inputs[:, 1:], torch.as_tensor(inputs[:, :1]))


def only_the_bias():
    task = softmax()
    layer = nn.Linear(30, 2).double()
    layer.load_state_dict(task.model.state_dict())
    layer.weight.requires_grad_(False)
    return task.with_model(exact_fit(replace(task, model=layer), tolerance=1e-13).model)


def on_features():
    body = nn.Sequential(nn.Linear(30, 8), nn.Tanh()).requires_grad_(False)
    inputs, labels = cancer()
    return trained(nn.Sequential(body, nn.Linear(8, 2)), nn.CrossEntropyLoss(), inputs, labels, features="fixed")


@pytest.mark.parametrize("make", [softmax, weighted, binary, ridge, only_the_bias, on_features])
def test_the_weights_are_those_of_retraining_and_certified(make):
    task = make()
    done = Unlearner(task, "exact").forget(GONE)
    truth = flat(retrained(task, GONE))
    distance, before = (flat(done.model) - truth).norm(), (flat(task.model) - truth).norm()
    assert distance <= 1e-4 * before
    assert done.certificate.kind == "convex"
    assert distance <= done.certificate.bound <= 1e-3 * before
    assert "of those of the exact minimum" in done.summary()


@pytest.mark.parametrize("make", [softmax, binary])
def test_the_certificate_of_other_weights_is_tight(make):
    """Of weights that are near the minimum, but not at it, so that rounding is no excuse."""
    task = make()
    truth = retrained(task, GONE)
    residual = torch.tensor([number for number in range(len(task.train_set)) if number not in GONE])
    nudged = _nudged(copy.deepcopy(truth))
    distance = (flat(nudged) - flat(truth)).norm()
    assert distance <= certified(task, nudged, residual).bound <= 1.5 * distance


def _nudged(model):
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number), dtype=weight.dtype)
            weight.add_(1e-5 * noise)
    return model


def test_single_precision_ends_at_its_rounding_and_says_so():
    task = softmax(torch.float32)
    done = Unlearner(task, Exact(share=1e-9)).forget(GONE)
    truth = flat(retrained(task, GONE))
    assert (flat(done.model) - truth).norm() <= done.certificate.bound <= 1e-3 * (flat(task.model) - truth).norm()
    assert "mostly the rounding of float32 weights" in done.summary()


def test_the_last_of_many_requests_is_as_exact_as_the_first():
    inputs, labels = load_digits(n_class=3, return_X_y=True)
    task = trained(nn.Linear(64, 3), nn.CrossEntropyLoss(), inputs[:140] / 16, labels[:140], weight_decay=0.01)
    unlearner = Unlearner(task, "exact")
    for number in range(100):
        done = unlearner.forget([number])
        moved = (flat(done.model) - flat(done.before)).norm()
        assert done.certificate.bound <= 2e-4 * moved
    assert (flat(done.model) - flat(retrained(task, range(100)))).norm() <= done.certificate.bound


def test_slices_are_named_by_how_much_they_moved():
    done = Unlearner(softmax(), "exact").forget(GONE)
    assert len(done.slices) == 2
    assert all(score > 0 for score in done.scores.values())


def test_it_is_the_default_for_convex_models():
    task = softmax()
    said = Unlearner(task).forget(GONE)
    assert "method exact was chosen" in said.summary()
    assert "method step was chosen" in Unlearner(replace(task, weight_decay=0.0)).forget(GONE).summary()


def test_a_model_that_was_not_trained_to_its_minimum_is_not_moved_there():
    """Retraining would not end there either, and all answers would change."""
    task = softmax()
    early = task.with_model(fit(replace(task, model=nn.Linear(30, 2).double()), epochs=1, lr=0.01).model)
    done = Unlearner(early).forget(GONE)
    assert "method exact was chosen" not in done.summary()
    moved = (flat(done.model) - flat(early.model)).norm()
    assert moved < 0.1 * (flat(task.model) - flat(early.model)).norm()


def test_what_the_task_vouches_for_is_retrained_from_where_it_is():
    inputs, labels = cancer()
    model = nn.Sequential(nn.Linear(30, 2), nn.Identity(), Scaled())
    task = trained(model, nn.CrossEntropyLoss(), inputs, labels, convex=True)
    done = Unlearner(task).forget(GONE)
    assert (flat(done.model) - flat(retrained(task, GONE))).norm() < 1e-6
    assert "found by Newton's method" in done.summary()


class Scaled(nn.Module):
    def forward(self, outputs):
        return 2 * outputs


def test_sample_weights_count():
    inputs, labels = cancer()
    weights = torch.linspace(0.1, 3, len(labels), dtype=torch.float64)
    targets = torch.stack([torch.as_tensor(labels).double(), weights], dim=1)
    task = trained(nn.Linear(30, 2), SampleWeighted(nn.CrossEntropyLoss()), inputs, targets)
    done = Unlearner(task, "exact").forget(GONE)
    assert (flat(done.model) - flat(retrained(task, GONE))).norm() <= done.certificate.bound


def test_bad_options_and_models_are_refused():
    task = softmax()
    network = nn.Sequential(nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with pytest.raises(NeverSupportedError, match="method exact is for convex models"):
        Unlearner(replace(task, model=network), "exact")
    with pytest.raises(InputError, match="weight_decay must be above 0 for method exact"):
        Unlearner(replace(task, weight_decay=0.0), "exact")
    with pytest.raises(InputError, match="share must be below 1, not 1"):
        Exact(share=1)
    with pytest.raises(InputError, match="bound must be"):
        Exact(bound=-1.0)
