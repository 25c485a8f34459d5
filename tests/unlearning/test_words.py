"""A summary's words are true: who shortened a step, and what a weaker drift means."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Descent, Drift, Forgotten, Guard, Step, Task, Unlearner, fit

PROTECT = "to protect the retained samples"


@pytest.fixture(scope="module")
def task():
    inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    labels[:4] = 1 - labels[:4]
    torch.manual_seed(0)
    made = Task(
        nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2)),
        nn.CrossEntropyLoss(),
        TensorDataset(inputs, labels),
        weight_decay=1e-3,
    )
    return made.with_model(fit(made, epochs=60, lr=0.2, seed=0).model)


def harmful(monkeypatch, unlearner, times):
    """The guard finds the first results too harmful."""
    unlearner.prepare()
    found = [*[unlearner._sample_losses + 10] * times, unlearner._sample_losses]
    monkeypatch.setattr(
        "excise.unlearning.guard.GuardSample.losses", lambda *_: found.pop(0) if found[1:] else found[0]
    )


@pytest.mark.parametrize("method", [Step("all"), Drift(), Drift.thorough()], ids=["step", "drift", "thorough"])
def test_what_is_not_shortened_is_not_said_to_be(task, method):
    done = Unlearner(task, method, guard=Guard(factor=100)).forget([7])
    assert done.step_share == 1
    assert PROTECT not in done.summary()
    assert "short" not in done.summary()


def test_the_guard_is_named_where_it_was_the_guard(task, monkeypatch):
    unlearner = Unlearner(task, Step("all"))
    harmful(monkeypatch, unlearner, 1)
    done = unlearner.forget([0, 1])
    assert done.step_share < 1
    assert f"shortened to {100 * done.step_share:.2g} % {PROTECT}" in done.summary()


def test_a_step_as_long_as_the_weights_has_words_of_its_own(task):
    done = Unlearner(task, Step("all", size=1e9), guard=Guard(factor=1e9, points=100)).forget([0, 1])
    assert done.step_share < 1
    assert "no longer than the weights it changes" in done.summary()
    assert PROTECT not in done.summary()


def test_a_line_search_has_words_of_its_own(task, monkeypatch):
    monkeypatch.setattr("excise.unlearning.descent._descend", _half)
    done = Unlearner(task, Descent(steps=1)).forget([0, 1])
    assert "the line search shortened steps, the shortest to 0.5 of itself" in done.summary()
    assert PROTECT not in done.summary()


def _half(_, __, model, *___):
    with torch.no_grad():
        model[0].weight += 1e-3
    return 0.5


def test_a_thorough_drift_that_is_weakened_says_that_one_pass_may_forget_more(task, monkeypatch, tmp_path):
    unlearner = Unlearner(task, Drift.thorough())
    harmful(monkeypatch, unlearner, 2)
    done = unlearner.forget([0, 1])
    assert done.step_share == 0.25
    assert "with 25% of its force" in done.summary()
    assert "less than a single pass would: compare with Drift() (--method drift)" in done.summary()
    done.save(tmp_path / "out.safetensors")
    assert Forgotten.load(tmp_path / "out.safetensors", task).summary() == done.summary()
    once = Unlearner(task, Drift())
    harmful(monkeypatch, once, 1)
    assert "a larger guard (--guard) allows more" in once.forget([0, 1]).summary()
