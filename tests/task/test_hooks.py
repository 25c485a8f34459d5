"""Hooks see what they should, and none is left behind."""

import pytest
import torch
from torch import nn

from excise.task.hooks import capture


class Sum(nn.Module):
    def forward(self, x, *, shift=0.0):
        return x + shift


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))


def hooks(model):
    return [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]


@pytest.mark.parametrize("before", [True, False])
def test_no_hook_is_left_after_a_pass_or_an_error(model, before):
    with capture(model, ["0", "2"], lambda call: call.place, before=before) as seen:
        assert len(hooks(model)) == 2
        model(torch.zeros(4, 2))
    assert seen == [[0], [1]]
    assert not hooks(model)
    with (
        pytest.raises(RuntimeError, match="mat1 and mat2"),
        capture(model, ["0", "2"], lambda call: call.input, before=before),
    ):
        model(torch.zeros(4, 5))
    assert not hooks(model)
    with (
        pytest.raises(ZeroDivisionError),
        capture(model, ["0", "2"], lambda _: 1 / 0, before=before),
    ):
        model(torch.zeros(4, 2))
    assert not hooks(model)
    with pytest.raises(AttributeError, match="missing"), capture(model, ["0", "missing"], lambda _: None):
        pass
    assert not hooks(model)


def test_calls_are_seen_in_order_and_names_may_repeat(model):
    a, b = torch.randn(1, 2), torch.randn(1, 2)
    with capture(model, ["0", "0", ""], lambda call: call.input) as (first, second, whole):
        model(a), model(b)
    for seen in (first, second, whole):
        assert torch.equal(torch.cat(seen), torch.cat([a, b]))


def test_arguments_by_name_are_seen_too():
    model = Sum()
    with capture(model, [""], lambda call: (call.input.item(), call.options, call.output.item())) as (seen,):
        model(torch.tensor(1.0), shift=2.0)
        model(x=torch.tensor(4.0))
    assert seen[0] == (1.0, {"shift": 2.0}, 3.0)
    assert seen[1][0] == 4.0


def test_before_the_call_there_is_no_output(model):
    with capture(model, ["0"], lambda call: call.output, before=True) as (seen,):
        model(torch.zeros(1, 2))
    assert seen == [None]


def test_protected_outputs_stay_as_they_were(model):
    x = torch.randn(20, 2)
    plain = model[0](x)
    for protect in (True, False):
        with torch.no_grad(), capture(model, ["0"], lambda call: call.output, protect=protect) as (seen,):
            outputs = model(x)
        assert torch.equal(seen[0], plain) == protect
        assert torch.equal(outputs, model(x))
