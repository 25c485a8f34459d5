"""One function in other words: a binary answer in one column or in two gives the same losses, curvature and results.

The second column is made of the first here, by the logits (0, z), so that both models have the same weights. A model
that *learned* two columns has twice the weights of the last layer, of which weight decay and a choice of slices make
something else: that can't be the same, whatever the method.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Descent, Drift, NotConvergedWarning, Step, Task, Unlearner, fit
from excise.curvature.operators import curvature
from excise.slices.slices import whole_model_block
from excise.task import objective
from excise.unlearning.performance import performance

N, GONE = 90, [3, 5, 8]


class TwoColumns(nn.Module):
    """A logit z as the logits 0 and z."""

    def forward(self, logit):
        return torch.cat([torch.zeros_like(logit), logit], dim=1)


@pytest.fixture(scope="module")
def both():
    inputs = torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = (inputs[:, 0] + 0.3 * inputs[:, 1] ** 2 > 0).long()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    one = Task(network, nn.BCEWithLogitsLoss(), TensorDataset(inputs, labels.double()[:, None]), weight_decay=1e-3)
    one = one.with_model(fit(one, epochs=40, lr=0.3, seed=0).model)
    wide = nn.Sequential(*copy.deepcopy(list(one.model)), TwoColumns())
    return one, Task(wide, nn.CrossEntropyLoss(), TensorDataset(inputs, labels), weight_decay=1e-3)


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_losses_gradients_and_accuracy(both):
    assert torch.allclose(*(objective.losses_on(task, task.model, range(N)) for task in both), atol=1e-10)
    first, second = (objective.gradient(task, task.model, GONE) for task in both)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(first.values(), second.values(), strict=True))
    first, second = (performance(task, task.model, range(N)) for task in both)
    assert first.accuracy == second.accuracy


@pytest.mark.parametrize("kind", ["ggn", "hessian", "fisher"])
def test_curvature(both, kind):
    found = []
    for task in both:
        operator = curvature(task, task.model, whole_model_block(task.model), range(N), kind=kind)
        vector = torch.randn(operator.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found.append(operator.product(vector))
    assert torch.allclose(*found, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [Step("all", "ggn"), Step("all"), Step(), Drift(), Drift.of_class(), Descent(steps=2)],
    ids=["step, Gauss-Newton", "step, kept curvature", "step", "drift", "class", "descent"],
)
def test_every_method_gives_the_same_model(both, method):
    found = [Unlearner(task, method, n_jobs=1).forget(GONE) for task in both]
    assert torch.allclose(*(weights(done.model) for done in found), rtol=0, atol=1e-5)
    assert found[0].forget_loss == pytest.approx(found[1].forget_loss, abs=1e-5)
    assert found[0].forget_accuracy == found[1].forget_accuracy
    assert found[0].summary().splitlines()[1:] == found[1].summary().splitlines()[1:]


def test_an_untrained_model_is_noticed_in_either_words(both):
    for task in both:
        blank = copy.deepcopy(task.model)
        for weight in blank.parameters():
            nn.init.zeros_(weight)
        with pytest.warns(NotConvergedWarning, match=r"guessing has 0\.693"):
            Unlearner(task.with_model(blank))


def test_weights_of_samples_carried_by_the_targets(both):
    """Twice the weight is the sample twice."""
    inputs, labels = both[0].train_set.tensors[0], both[0].train_set.tensors[1][:, 0]
    twice = torch.cat([torch.arange(N), torch.tensor([4, 6])])
    repeated = Task(both[0].model, nn.BCEWithLogitsLoss(), TensorDataset(inputs[twice], labels[twice, None]))
    shares = torch.ones(N, dtype=torch.float64)
    shares[[4, 6]] = 2
    shares /= shares.mean()
    bce = nn.BCEWithLogitsLoss(reduction="none")
    weighted = Task(
        both[0].model,
        lambda outputs, targets: targets[:, 1] * bce(outputs[:, 0], targets[:, 0]),
        TensorDataset(inputs, torch.stack([labels, shares], 1)),
    )
    found = [objective.objective_gradient(task, task.model, task.all_ids) for task in (repeated, weighted)]
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-10) for name in found[0])
    Unlearner(weighted, Step("all"))  # which refuses losses that mix samples
