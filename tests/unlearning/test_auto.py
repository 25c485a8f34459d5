"""Which method is chosen, and what is said of it."""

from dataclasses import replace

import pytest
import torch
from digit_network import digit_network, digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import (
    Auto,
    Drift,
    Exact,
    InputError,
    NeverSupportedError,
    NothingForgotten,
    Predicted,
    Step,
    Unlearner,
    exact_fit,
    fit,
)
from excise.unlearning import linearised
from excise.unlearning.auto import choose
from excise.unlearning.calibrated import Calibrated
from excise.unlearning.method import Workspace


@pytest.fixture(scope="module")
def network():
    return digit_network(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, images):
        return self.head(self.body(images.reshape(-1, 8, 8))[0][:, -1])


def chosen(task):
    return choose(Workspace(task, 0, None)).method


def test_the_choice_is_by_model_data_and_loss(network):
    assert isinstance(chosen(network), Calibrated)
    assert chosen(replace(network, test_set=None)) == Step()
    assert chosen(replace(network, test_set=digits(300, 310))) == Step()
    assert chosen(replace(network, model=nn.Linear(64, 10))) == Exact()
    assert chosen(replace(network, model=nn.Linear(64, 10), weight_decay=0.0)) == Step("all")
    assert isinstance(chosen(replace(network, model=Recurrent())), Drift)


def test_it_is_the_default_and_says_what_it_chose(network):
    unlearner = Unlearner(network)
    assert unlearner.method == Auto()
    assert unlearner.settings["method"]["name"] == "auto"
    said = unlearner.forget([10, 11, 12]).summary()
    assert "method predicted was chosen, since held-out samples tell how strongly the model holds on" in said
    assert "there is no test_set" in Unlearner(replace(network, test_set=None)).forget([3]).summary()


def test_the_outcome_is_that_of_the_chosen_method(network):
    methods = "auto", Predicted()
    found, same = (Unlearner(network, method, seed=1).forget([3, 4, 5]).model for method in methods)
    for one, other in zip(found.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_whole_class_is_denied_and_answers_are_predicted_for_a_part_of_it(network):
    ids = (network.targets == 3).nonzero()[:, 0].tolist()
    whole = Unlearner(network).forget(ids)
    assert "no sample of their class is left" in whole.summary()
    assert whole.forget_accuracy[1] == 0
    unlearner = Unlearner(network).prepare()
    part = unlearner.forget(ids[:12])
    assert f"method predicted was chosen, since {12 / len(ids):.0%} of class 3 go at once" in part.summary()
    same = Unlearner(network, Predicted()).forget(ids[:12])
    for one, other in zip(part.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "held-out samples tell how strongly" in unlearner.forget([1]).summary()


def test_hard_samples_are_predicted_too(network):
    with torch.no_grad():
        losses = network.losses(network.model, network.batch(range(300)))
    done = Unlearner(network).forget(losses.argsort(descending=True)[:6].tolist())
    assert "method predicted was chosen" in done.summary()
    assert done.forget_loss[1] > done.forget_loss[0]


def test_answers_are_predicted_where_samples_are_known_by_heart(network, monkeypatch):
    monkeypatch.setattr("excise.unlearning.held_out_answers.BY_HEART", -1.0)
    assert "the model knows its training samples by heart" in Unlearner(network).forget([3, 4, 5]).summary()


def test_losses_without_margins_have_one_method_for_all(network):
    smooth = replace(network, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    ids = (network.targets == 3).nonzero()[:12, 0].tolist()
    assert "calibrated" in Unlearner(smooth).forget(ids).summary()


def test_of_a_linear_model_before_its_minimum_the_newton_step_is_right_for_all(network):
    torch.manual_seed(0)
    start = replace(network, model=nn.Linear(64, 10), weight_decay=1e-3)
    task = start.with_model(fit(start, epochs=10, lr=0.05).model)
    ids = (task.targets == 3).nonzero()[:, 0].tolist()
    part = Unlearner(task).forget(ids[:12])
    assert "method calibrated was chosen, since of a linear model" in part.summary()
    assert "not at the minimum of its objective" in part.summary()
    assert "gentle pass" not in part.summary()
    assert "no sample of their class is left" in Unlearner(task).forget(ids).summary()


def test_of_a_model_whose_gradients_do_not_fit_the_newton_step_is_taken(network, monkeypatch):
    monkeypatch.setattr(linearised, "ROW_BYTES", 1)
    asked = list(range(3))
    assert "method calibrated was chosen" in Unlearner(network).forget(asked).summary()
    with pytest.raises(NeverSupportedError, match="the gradients of only 1 samples fit into memory"):
        Unlearner(network, Predicted()).forget(asked)
    whole = Unlearner(network).forget((network.targets == 3).nonzero()[:, 0].tolist())
    assert "no sample of their class is left" in whole.summary()


def test_a_request_whose_gradients_do_not_fit_is_made_by_the_newton_step(network):
    unlearners = Unlearner(network).prepare(), Unlearner(network, Predicted()).prepare()
    for one, name in zip(unlearners, ("made", None), strict=True):
        held = one._prepared.made["predicted"] if name else one._prepared
        object.__setattr__(held, "most_rows", 5)
    assert "method calibrated was chosen" in unlearners[0].forget(range(6)).summary()
    with pytest.raises(InputError, match="ids has 6 samples, and the gradients of 5 fit into memory"):
        unlearners[1].forget(range(6))


def test_samples_whose_labels_do_not_count_leave_nothing_to_forget(network):
    images, labels = network.train_set.tensors
    some = labels.clone()
    some[:5] = -100
    task = replace(network, train_set=TensorDataset(images, some))
    with pytest.raises(NothingForgotten, match="none of the samples has a label that counts"):
        Unlearner(task).forget([0, 3])
    assert 3 in Unlearner(task).forget([3, 7]).ids


def test_samples_without_a_label_do_not_change_the_method(network):
    images, labels = network.train_set.tensors
    more = TensorDataset(torch.cat([images, images[:280]]), torch.cat([labels, torch.full((280,), -100)]))
    for task in (network, replace(network, train_set=more)):
        assert "retained samples responded" in Unlearner(task).forget([3, 7]).summary()


def test_it_says_that_for_so_many_samples_retraining_is_better(network):
    unlearner = Unlearner(network, guard=None)
    assert "retraining is better" not in unlearner.forget(range(10)).summary()
    assert "with this request 13% of the training set is gone" in unlearner.forget(range(20, 50)).summary()
    images, labels = network.train_set.tensors
    linear = replace(network, model=nn.Linear(64, 10), train_set=TensorDataset(images, labels), weight_decay=0.01)
    exactly = Unlearner(linear.with_model(exact_fit(linear).model)).forget(range(60))
    assert "method exact was chosen" in exactly.summary()
    assert "retraining is better" not in exactly.summary()  # it is what retraining gives


def test_samples_without_a_label_count_towards_what_must_fit(network):
    images, labels = network.train_set.tensors
    some = labels.clone()
    some[:4] = -100
    unlearner = Unlearner(replace(network, train_set=TensorDataset(images, some))).prepare()
    object.__setattr__(unlearner._prepared.made["predicted"], "most_rows", 5)
    assert "method calibrated was chosen" in unlearner.forget(range(8)).summary()
