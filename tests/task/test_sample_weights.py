"""Weights of samples: objective, curvature, certificate, retraining and audit heed them, and no figure takes them for
targets."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Descent, Drift, Effort, Step, Task, Unlearner, audit, exact_fit, fit
from excise.curvature.operators import curvature
from excise.errors import InputError
from excise.slices.slices import whole_model_block
from excise.task import SampleWeighted, objective
from excise.task.predictions import predict
from excise.task.targets import targets_of
from excise.training.model_cache import content_key

N, GONE = 120, [1, 5, 9, 20]
TOLERANCE = 2e-8  # of the truth: a gradient of 1e-10 times 1 + the norm of the weights, by the weight decay
KEPT = [place for place in range(N) if place not in GONE]
pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")


def numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(N, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, generator=generator, dtype=torch.float64)
    weights = 3 * torch.rand(N, generator=generator, dtype=torch.float64)
    return inputs, inputs[:, 0] + 0.5 * noise, weights / weights.mean()


def column(values):
    return (values > 0).double()


PROBLEMS = {
    "two classes": (nn.CrossEntropyLoss(), 2, column),
    "three classes": (nn.CrossEntropyLoss(label_smoothing=0.1), 3, lambda y: (y > -0.5).double() + (y > 0.5)),
    "class weights": (nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0])), 2, column),
    "one logit": (nn.BCEWithLogitsLoss(), 1, column),
    "a number": (nn.MSELoss(), 1, lambda y: y),
    "a function": (nn.functional.cross_entropy, 2, column),
}


def weighted(name, weights=None, decay=0.02):
    loss, outputs, target = PROBLEMS[name]
    inputs, values, own = numbers()
    data = TensorDataset(inputs, torch.stack([target(values), own if weights is None else weights], 1))
    other_inputs, other_values, _ = numbers(1)
    test = TensorDataset(other_inputs, torch.stack([target(other_values), torch.ones(N, dtype=torch.float64)], 1))
    torch.manual_seed(0)
    return Task(nn.Linear(4, outputs).double(), SampleWeighted(loss), data, test, weight_decay=decay)


def vector(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_forgetting_ends_where_exact_retraining_does(name):
    """And the certificate, whose convexity is proven, covers what is left."""
    task = weighted(name)
    task = task.with_model(exact_fit(task, double=True).model)
    truth = vector(exact_fit(task, ids=KEPT, double=True).model)
    done = Unlearner(task, Descent("all", steps=8)).forget(GONE)
    assert torch.allclose(vector(done.model), truth, atol=1e-6)
    assert done.certificate.kind == "convex", done.certificate.reason
    assert done.certificate.bound + TOLERANCE >= float((vector(done.model) - truth).norm())
    stepped = Unlearner(task, Step("all"), guard=None).forget(GONE)
    start, left = (float((vector(model) - truth).norm()) for model in (task.model, stepped.model))
    assert left < 0.2 * start
    assert left <= stepped.certificate.bound


@pytest.mark.parametrize("name", PROBLEMS)
def test_twice_the_weight_is_the_sample_twice(name):
    weights = torch.ones(N, dtype=torch.float64)
    weights[[4, 6]] = 2
    loss, outputs, target = PROBLEMS[name]
    inputs, values, _ = numbers()
    twice = torch.cat([torch.arange(N), torch.tensor([4, 6])])
    once = TensorDataset(inputs[twice], torch.stack([target(values), torch.ones(N)], 1)[twice])
    heavier, repeated = weighted(name, weights), Task(weighted(name).model, SampleWeighted(loss), once)
    found = [objective.gradient(task, task.model, task.all_ids) for task in (heavier, repeated)]
    assert all(torch.allclose(found[0][part], found[1][part], atol=1e-10) for part in found[0])
    block = whole_model_block(heavier.model)
    along = torch.ones(5 * outputs, dtype=torch.float64)
    for kind in ("ggn", "hessian"):
        bent = [
            curvature(task, task.model, block, task.all_ids, kind=kind).product(along) * len(task.train_set)
            for task in (heavier, repeated)
        ]
        assert torch.allclose(*bent, atol=1e-9)


def test_a_weight_of_0_is_a_sample_that_was_never_there():
    weights = numbers()[2].clone()
    weights[GONE] = 0
    task = weighted("two classes", weights)
    without = exact_fit(task, ids=KEPT).model  # whose mean is over fewer samples
    same = exact_fit(weighted("two classes", weights * N / len(KEPT)), double=True).model
    assert torch.allclose(vector(without), vector(same), atol=1e-6)


def test_weights_are_no_targets():
    """The audit took labels and weights for two numbers to predict, and told their error."""
    task = weighted("two classes")
    task = task.with_model(exact_fit(task).model)
    done = Unlearner(task, Descent("all", steps=5)).forget(GONE)
    assert targets_of(task).tolist() == column(numbers()[1]).long().tolist()
    assert targets_of(task, [3], dataset=task.test_set).dtype.kind == "i"
    said = predict(task, task.model)
    plain = Task(task.model, nn.CrossEntropyLoss(), TensorDataset(numbers()[0], column(numbers()[1]).long()))
    assert said.has_classes
    assert said.losses == pytest.approx(predict(plain, task.model).losses)  # as if all weighed the same
    assert done.forget_accuracy is not None
    found = audit(task, done, effort=Effort(relearn_steps=2, resamples=20))
    assert found.metric == "accuracy"
    assert "accuracy" in str(found)
    assert sorted(Unlearner(task, "class").forget("class:1").ids) == column(numbers()[1]).nonzero()[:, 0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one logit", "a number"])
def test_audits_of_one_column(name):
    task = weighted(name)
    task = task.with_model(exact_fit(task).model)
    done = Unlearner(task, Descent("all", steps=5)).forget(GONE)
    found = audit(task, done, effort=Effort(relearn_steps=2, resamples=20))
    assert found.metric == {"one logit": "accuracy", "a number": "rmse"}[name]
    assert found.original.summary is not None


@pytest.mark.slow
def test_networks_are_trained_and_forget():
    inputs, values, weights = numbers()
    data = TensorDataset(inputs.float(), torch.stack([column(values), weights], 1).float())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    task = Task(model, SampleWeighted(nn.CrossEntropyLoss()), data, weight_decay=1e-2)
    task = task.with_model(fit(task, epochs=20, seed=0).model)
    for method in (Step(), Drift(epochs=1)):
        assert Unlearner(task, method).forget(GONE).parameters_changed


def test_retrained_models_are_kept_by_the_loss_inside():
    first, second = (content_key(weighted(name), [0], 0, "fit") for name in ("two classes", "class weights"))
    assert first is not None
    assert first != second


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SampleWeighted(lambda a, b: a - b), "loss must be one of torch's"),
        (lambda: weighted("a number", -torch.ones(N, dtype=torch.float64)), "weight of sample 0 is -1"),
        (lambda: weighted("a number", torch.full((N,), torch.nan, dtype=torch.float64)), "weight of sample 0 is nan"),
        (
            lambda: Task(
                nn.Linear(4, 2),
                SampleWeighted(nn.CrossEntropyLoss()),
                TensorDataset(numbers()[0].float(), torch.zeros(N).long()),
            ),
            r"targets of shape \(120,\) carry no weights",
        ),
    ],
)
def test_what_is_no_weight_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_sum_is_refused():
    inputs, values, weights = numbers()
    data = TensorDataset(inputs, torch.stack([column(values), weights], 1))
    with pytest.raises(InputError, match='reduction="sum"'):
        Task(nn.Linear(4, 2).double(), SampleWeighted(nn.CrossEntropyLoss(reduction="sum")), data)


def test_a_negative_weight_that_is_read_later_gives_no_certificate():
    inputs, values, weights = numbers()
    weights = weights.clone()
    weights[100] = -1e-3
    data = list(zip(inputs, torch.stack([column(values), weights], 1), strict=True))
    task = Task(nn.Linear(4, 2).double(), SampleWeighted(nn.CrossEntropyLoss()), data, weight_decay=0.02)
    certificate = Unlearner(task, Step("all"), guard=None).forget(GONE).certificate
    assert certificate.kind == "heuristic"
    assert "weights negative" in certificate.reason
