"""What an ε promises is made good by what is measured, or refused with nothing given out and nothing spent."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import (
    BudgetAccountant,
    Descent,
    InputError,
    PaperStep,
    Privacy,
    RetrainRequired,
    Task,
    Unlearner,
    exact_fit,
    fit,
)
from excise.privacy import NoGuaranteeWarning
from excise.privacy.constants import constants_met
from excise.privacy.sightings import Head

N, DECAY = 60, 0.1
ASKED = {"epsilon": 1.0, "delta": 1e-3}


def rows():
    found = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    return found / found.norm(dim=1, keepdim=True)


@pytest.fixture(scope="module")
def logistic():
    torch.manual_seed(0)
    inputs = rows()
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    start = Task(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, weight_decay=DECAY)
    return start.with_model(exact_fit(start).model)


@pytest.fixture(scope="module")
def ridge():
    torch.manual_seed(0)
    inputs = rows()
    data = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-1.0], [0.5]]))
    start = Task(nn.Linear(3, 1), nn.MSELoss(), data, weight_decay=DECAY)
    return start.with_model(exact_fit(start, tolerance=1e-9).model)


HONEST = Privacy(lipschitz=3.0, hessian_lipschitz=3.0)  # rows of norm √2 with their 1 for the bias
EXACT = Descent(steps=8, selection="all")


def unchanged(unlearner, call, error, message):
    model, budget = unlearner.model, unlearner.privacy.budget
    before = None if budget is None else budget.state_dict()
    with pytest.raises(error, match=message):
        call()
    assert unlearner.model is model
    assert unlearner.forgotten == ()
    assert before is None or budget.state_dict() == before


def test_a_budget_has_no_free_releases(logistic):
    unlearner = Unlearner(logistic, privacy=replace(HONEST, budget=BudgetAccountant(1.0, 1e-3)))
    unchanged(unlearner, lambda: unlearner.forget([1]), InputError, "epsilon and delta must be given where there is a")


def test_the_certificate_is_recorded_beside_what_was_asked_for(logistic):
    budget = BudgetAccountant(2.0, 1e-3)
    done = Unlearner(logistic, privacy=replace(HONEST, budget=budget)).forget([1, 2], **ASKED)
    (spent,) = budget.history
    assert (spent.epsilon, spent.delta, spent.removed) == (1.0, 1e-3, 2)
    assert spent.certified == done.certificate.epsilon <= 1.0
    again = BudgetAccountant(2.0, 1e-3)
    again.load_state_dict(budget.state_dict())
    assert again.history == budget.history
    with pytest.raises(InputError, match=r"certified must be at most epsilon=0\.1, not 0\.2"):
        budget.spend(0.1, 1e-4, certified=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"lipschitz": 0.05}, "lipschitz=0.05 is too small: a sample's gradient has the norm "),
        ({"hessian_lipschitz": 1e-4}, "hessian_lipschitz=0.0001 is too small: a sample's Hessian changes by "),
    ],
)
def test_a_constant_that_is_refuted_voids_the_claim(logistic, constants, words):
    wrong = replace(HONEST, **constants)
    with pytest.warns(NoGuaranteeWarning, match=words):
        done = Unlearner(logistic, EXACT, privacy=wrong).forget([1], **ASKED)
    assert done.certificate.epsilon is None
    assert words in done.certificate.reason
    assert done.certificate.sigma > 0
    unlearner = Unlearner(logistic, EXACT, privacy=replace(wrong, budget=BudgetAccountant(2.0, 1e-3)))
    unchanged(unlearner, lambda: unlearner.forget([1], **ASKED), InputError, f"Nothing was given|{words}")


@pytest.mark.slow
def test_what_is_met_is_met_by_the_dense_derivatives(logistic):
    """L to the digit; M as a lower bound that is not far below what many random directions find."""
    model = copy.deepcopy(logistic.model).double()
    inputs, labels = (one.double() if one.is_floating_point() else one for one in logistic.train_set.tensors)
    met = constants_met(logistic, Head(logistic.model, logistic.model), torch.arange(N))
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])

    def loss(vector, place):
        outputs = inputs[place] @ vector[:6].reshape(2, 3).T + vector[6:]
        return nn.functional.cross_entropy(outputs[None], labels[place][None]) + DECAY / 2 * (vector**2).sum()

    norms = [float(torch.func.grad(loss)(weights, place).norm()) for place in range(N)]
    assert met.gradient == pytest.approx(max(norms), rel=1e-6)
    generator, largest = torch.Generator().manual_seed(1), 0.0
    for place in range(0, N, 6):
        hessian = torch.func.hessian(lambda vector, place=place: loss(vector, place))
        for _ in range(10):
            step = torch.randn(8, generator=generator).double()
            step *= 1e-3 / step.norm()
            largest = max(
                largest, float(torch.linalg.matrix_norm(hessian(weights + step) - hessian(weights), 2)) / 1e-3
            )
    assert 0.5 * largest < met.curvature_change < 3.0


def test_a_step_that_is_not_near_enough_is_refused_with_the_figures(logistic):
    tight = Privacy(lipschitz=1.5, hessian_lipschitz=0.5, budget=BudgetAccountant(2.0, 1e-3))
    far = logistic.with_model(nn.Linear(3, 2))
    unlearner = Unlearner(far, "step", guard=None, privacy=tight)
    nn.init.constant_(far.model.weight, 0.5)
    unchanged(
        unlearner,
        lambda: unlearner.forget([1], epsilon=0.01, delta=1e-3),
        InputError,
        r"does not hold for this request: the weights can be .* hides to epsilon=.* only\. Nothing was given",
    )


@pytest.mark.parametrize("convex", [None, False])
def test_a_model_that_is_not_convex_spends_nothing_and_promises_nothing(convex):
    torch.manual_seed(0)
    inputs = rows()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    start = Task(model, nn.CrossEntropyLoss(), TensorDataset(inputs, (inputs[:, 0] > 0).long()), weight_decay=DECAY)
    fitted = fit(start, epochs=5, recorder=True)
    task = replace(start.with_model(fitted.model), convex=convex)
    unlearner = Unlearner(task, privacy=replace(HONEST, budget=BudgetAccountant(2.0, 1e-3)))
    unchanged(unlearner, lambda: unlearner.forget([1], **ASKED), InputError, "epsilon promises nothing for this model")
    paper = PaperStep(fitted.trace)
    done = Unlearner(task, paper).forget([1], epsilon=0.5, delta=0.01)
    assert done.certificate.epsilon is done.certificate.bound is None
    counted = Unlearner(task, paper, privacy=Privacy(budget=BudgetAccountant(2.0, 0.01)))
    unchanged(
        counted, lambda: counted.forget([1], epsilon=0.5, delta=0.01), InputError, "PaperStep has noise of its own"
    )


def test_the_noise_of_the_paper_promises_nothing_for_a_convex_model_either(logistic):
    fitted = fit(replace(logistic, model=nn.Linear(3, 2)), epochs=5, recorder=True)
    task = logistic.with_model(fitted.model)
    done = Unlearner(task, PaperStep(fitted.trace)).forget([1], epsilon=0.5, delta=0.01)
    assert done.certificate.bound is not None
    assert done.certificate.epsilon is None
    assert "on some slices alone" in done.certificate.reason


def test_no_noise_for_a_quadratic_loss_only_where_the_step_is_exact(ridge):
    quadratic = Privacy(lipschitz=9.0, hessian_lipschitz=0.0)
    done = Unlearner(ridge, EXACT, privacy=quadratic).forget([1, 2], **ASKED)
    assert "The step was exact" in done.certificate.reason
    assert done.certificate.epsilon is done.certificate.sigma is None
    inputs, targets = (one.double().numpy() for one in ridge.train_set.tensors)
    kept = [place for place in range(N) if place not in (1, 2)]
    design = np.hstack([inputs, np.ones((N, 1))])[kept]
    truth = np.linalg.solve(
        2 * design.T @ design / len(kept) + DECAY * np.eye(4), 2 * design.T @ targets[kept] / len(kept)
    )
    found = torch.cat([one.detach().flatten() for one in done.model.parameters()]).numpy()
    assert np.abs(found - truth.ravel()).max() < 1e-5
    off = copy.deepcopy(ridge.model)
    with torch.no_grad():
        off.weight += 0.1
    rough = Unlearner(ridge.with_model(off), "step", guard=None, privacy=quadratic)
    unchanged(rough, lambda: rough.forget([1, 2], **ASKED), InputError, "hessian_lipschitz=0 means that no noise is")


def test_a_logistic_loss_is_not_quadratic(logistic):
    wrong = Privacy(lipschitz=3.0, hessian_lipschitz=0.0)
    unlearner = Unlearner(logistic, EXACT, privacy=wrong)
    with pytest.warns(NoGuaranteeWarning, match="hessian_lipschitz=0 is too small"):
        unchanged(unlearner, lambda: unlearner.forget([1], **ASKED), InputError, "hessian_lipschitz=0 is too small")


def test_a_loss_with_kinks_has_no_second_constant(ridge):
    task = replace(ridge, loss=nn.HuberLoss())
    with pytest.warns(NoGuaranteeWarning, match="the Hessian of HuberLoss jumps"):
        done = Unlearner(task, privacy=Privacy(lipschitz=9.0, hessian_lipschitz=9.0)).forget([1], **ASKED)
    assert done.certificate.epsilon is None


def test_repeatable_noise_promises_nothing(logistic):
    repeatable = replace(HONEST, noise_seed=1, repeatable=True)
    done = Unlearner(logistic, privacy=repeatable).forget([1], **ASKED)
    assert done.certificate.epsilon is None
    assert "can be taken off again" in done.certificate.reason


def test_a_budget_in_a_file_is_spent_by_requests(logistic, tmp_path):
    budget = BudgetAccountant.at(tmp_path / "budget.json", 1.0, 1e-3)
    Unlearner(logistic, privacy=replace(HONEST, budget=budget)).forget([1], **ASKED)
    other = Unlearner(logistic, privacy=replace(HONEST, budget=BudgetAccountant.at(tmp_path / "budget.json")))
    unchanged(other, lambda: other.forget([2], **ASKED), RetrainRequired, "does not fit: 1 requests")


def test_noise_that_the_weights_can_not_hold_is_refused(logistic):
    """It gave out weights that were infinite."""
    huge = Privacy(lipschitz=1e30, hessian_lipschitz=1e30, budget=BudgetAccountant(2.0, 1e-3))
    unlearner = Unlearner(logistic, privacy=huge)
    unchanged(unlearner, lambda: unlearner.forget([1], **ASKED), InputError, "too large for weights of torch.float32")
