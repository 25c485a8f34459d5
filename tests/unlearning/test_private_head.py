"""Objective perturbation: certified removal without noise at the request."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import TensorDataset

from excise import BudgetAccountant, InputError, NeverSupportedError, Privacy, Task, Unlearner, exact_fit, fit_private
from excise.privacy.accountant import RetrainRequired
from excise.privacy.gaussian import analytic_sigma, gaussian_delta

GONE = [3, 40, 41]


@pytest.fixture(scope="module")
def task():
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = torch.tensor(StandardScaler().fit_transform(inputs))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = nn.Linear(30, 2).double()
    return Task(start, nn.CrossEntropyLoss(), TensorDataset(inputs, torch.tensor(labels)), weight_decay=0.01)


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def perturbed_minimum(task, ids, tilt):
    """By plain gradient descent of torch's own, with no code of the package but the task's data."""
    inputs, labels = (part[ids] for part in task.train_set.tensors)
    weights = torch.zeros(2, 31, dtype=torch.double, requires_grad=True)
    rows = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.double)], 1)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=2000, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(rows @ weights.T, labels) + 0.005 * weights.square().sum()
        loss = loss + (tilt * weights).sum() / len(ids)
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    return torch.cat([weights[:, :30].flatten(), weights[:, 30]]).detach()


def test_training_and_removal_end_at_the_minimum_of_the_perturbed_objective(task):
    head = fit_private(task, sigma=2.0, source=np.random.default_rng(1))
    tilt = torch.tensor(2.0 * np.random.default_rng(1).standard_normal(62)).reshape(2, 31)
    everyone = torch.arange(len(task.train_set))
    assert torch.allclose(flat(head.model), perturbed_minimum(task, everyone, tilt), atol=1e-6)
    done = head.forget(GONE, epsilon=0.1, delta=1e-6)
    kept = everyone[~torch.isin(everyone, torch.tensor(GONE))]
    assert torch.allclose(flat(done.model), perturbed_minimum(task, kept, tilt), atol=1e-6)


def test_the_epsilon_is_that_of_the_gradient_that_is_left(task):
    done = fit_private(task, sigma=1e-7).forget(GONE, epsilon=2.0, delta=1e-6)
    found = done.certificate
    left = found.gradient_norm * (len(task.train_set) - len(GONE))
    assert 0 < found.epsilon <= 2.0
    assert gaussian_delta(1e-7, left, found.epsilon) <= 1e-6 * (1 + 1e-6)
    assert "certified removal in the sense of Guo et al. (2020)" in found.reason


def test_requests_go_on_and_are_counted(task):
    head = fit_private(task, sigma=1.0, budget=BudgetAccountant(0.15, 1e-4))
    first = head.forget([1], epsilon=0.1, delta=1e-5)
    second = head.forget([2], epsilon=0.1, delta=1e-5)
    assert (first.forgotten, second.forgotten) == ((1,), (1, 2))
    with pytest.raises(InputError, match="forgotten already"):
        head.forget([2], epsilon=0.1, delta=1e-5)
    with pytest.raises(RetrainRequired):
        head.forget([4], epsilon=0.2, delta=1e-5)
    assert torch.equal(flat(head.model), flat(second.model))


def test_what_is_drawn_is_secret_and_other_each_time(task):
    assert not torch.equal(flat(fit_private(task, sigma=1.0).model), flat(fit_private(task, sigma=1.0).model))


def test_bad_requests_are_refused_and_change_nothing(task):
    single = task.with_model(nn.Linear(30, 2))
    images, labels = task.train_set.tensors
    single = Task(nn.Linear(30, 2), nn.CrossEntropyLoss(), TensorDataset(images.float(), labels), weight_decay=0.01)
    rough = fit_private(single, sigma=1e-6)
    before = flat(rough.model)
    with pytest.raises(InputError, match=r"epsilon=1e-06 does not hold .* train with a larger sigma"):
        rough.forget(GONE, epsilon=1e-6, delta=1e-9)
    assert torch.equal(before, flat(rough.model))
    with pytest.raises(InputError, match="sigma must be"):
        fit_private(task, sigma=0)
    network = nn.Sequential(nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with pytest.raises(NeverSupportedError, match="fit_private is for a linear layer"):
        fit_private(task.with_model(network), sigma=1.0)
    with pytest.raises(InputError, match="would leave no sample"):
        rough.forget(range(len(images)), epsilon=1.0, delta=1e-5)


def test_noise_may_be_as_large_as_the_certificate_asks_for(task):
    trained = task.with_model(exact_fit(task).model)
    budget = BudgetAccountant(2.0, 1e-3)
    unlearner = Unlearner(trained, privacy=Privacy(noise="certificate", budget=budget))
    done = unlearner.forget(GONE, epsilon=1.0, delta=1e-5)
    found = done.certificate
    assert found.sigma == pytest.approx(analytic_sigma(found.bound, 1.0, 1e-5), rel=1e-6)
    assert found.epsilon <= 1.0
    assert "whose distance the size of the noise was found from" in found.reason
    assert budget.spent.epsilon > 0
    worst = Privacy(lipschitz=20.0, hessian_lipschitz=20.0)
    assert found.sigma < 1e-3 * worst.sigma(task, len(GONE), 1.0, 1e-5)


def test_noise_by_a_certificate_needs_a_convex_model(task):
    network = nn.Sequential(nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with pytest.raises(InputError, match="epsilon promises nothing for this model"):
        Unlearner(task.with_model(network), "step", privacy=Privacy(noise="certificate")).forget(
            GONE, epsilon=1.0, delta=1e-5
        )
    with pytest.raises(InputError, match="noise must be one of"):
        Privacy(noise="little")


class Centred(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(0)


def test_what_is_not_convex_or_depends_on_the_batch_is_refused(task):
    inputs, labels = task.train_set.tensors
    centred = task.with_model(nn.Sequential(Centred(), nn.Linear(30, 2).double()))
    with pytest.raises(NeverSupportedError, match="depends on a sample's company"):
        fit_private(centred, sigma=1.0)
    odd = 3 * torch.rand(len(labels), 2, dtype=torch.double, generator=torch.Generator().manual_seed(0)) - 1.4
    with pytest.raises(NeverSupportedError, match="no probabilities"):
        fit_private(Task(task.model, nn.CrossEntropyLoss(), TensorDataset(inputs, odd), weight_decay=0.1), sigma=10.0)


def test_features_may_have_seen_the_samples(task):
    body = nn.Linear(30, 5).double().requires_grad_(False)
    made = task.with_model(nn.Sequential(body, nn.Linear(5, 2).double()))
    found = fit_private(made, sigma=1.0).forget(GONE, epsilon=0.1, delta=1e-6).certificate
    assert found.last_layer_only
    assert "nothing is guaranteed of what they keep" in found.reason
