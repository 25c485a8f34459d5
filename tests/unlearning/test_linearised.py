"""The network as a linear one: kernels in parts, predictions and corrections."""

from dataclasses import replace

import pytest
import torch
from digit_network import digit_network
from torch.utils.data import TensorDataset

from excise import InputError
from excise.curvature.margins import margins
from excise.slices.slices import find_slices
from excise.task.parameters import move, trainable
from excise.unlearning.hold import Hold
from excise.unlearning.linearised import Linearised, Request, kernel_among
from tests.dense_rows import margin_rows


@pytest.fixture(scope="module")
def trained():
    return digit_network(0)


@pytest.fixture(scope="module")
def network(trained):
    return Linearised.of(trained, trained.model, find_slices(trained.model), torch.arange(300), mass=300.0, seed=0)


def test_a_request_in_parts_is_the_whole_one(trained, network):
    some = [network.gradients(trained.model, torch.arange(*ends)) for ends in ((0, 8), (20, 40), (50, 65))]
    in_parts = Request.of(some[0], some[1], kernel_among(some[1])).with_more(some[2])
    both = some[1].joined(some[2])
    whole = Request.of(some[0], both, kernel_among(both))
    for name in ("own", "across", "among"):
        assert torch.allclose(getattr(in_parts, name), getattr(whole, name), rtol=1e-4, atol=1e-4)
    let_go = Hold(2.0)(some[0].margins)
    assert torch.allclose(in_parts.predict(let_go).margins, whole.predict(let_go).margins, atol=1e-3)


def test_the_step_gives_what_is_predicted_where_it_is_small(trained, network):
    forgotten, retained = (network.gradients(trained.model, torch.arange(*ends)) for ends in ((0, 10), (20, 60)))
    request = Request.of(forgotten, retained, kernel_among(retained))
    found, model = request.predict(Hold(0.01)(forgotten.margins)), trained.with_model(trained.model).model
    start = {name: weight.clone() for name, weight in trainable(model).items()}
    move(model, start, network.block.scatter(found.step, start))
    moved = margins(trained, model, torch.arange(10)).values - forgotten.margins.values
    move(model, start, {})
    assert torch.allclose(moved, found.margins - forgotten.margins.values, atol=0.02 * float(moved.abs().max()))


def test_a_correction_moves_margins_by_what_is_asked(trained, network):
    forgotten, retained = (network.gradients(trained.model, torch.arange(*ends)) for ends in ((0, 5), (20, 40)))
    request = Request.of(forgotten, retained, kernel_among(retained))
    asked = torch.cat([torch.full((5,), -1.0), torch.zeros(20)]).double()
    rows = margin_rows(trained, trained.model, network.block, [*range(5), *range(20, 40)])
    moved = rows @ request.correction(asked)
    assert torch.allclose(moved[:5].double(), asked[:5], atol=0.2)
    assert moved[5:].abs().max() < 0.2


def test_a_sample_without_a_finite_gradient_is_named(trained, network):
    images, labels = (one.clone() for one in trained.train_set.tensors)
    images[7] = torch.inf
    spoiled = replace(network, task=replace(trained, train_set=TensorDataset(images, labels)))
    with pytest.raises(InputError, match="sample 7 of train_set has a gradient that is not finite"):
        spoiled.gradients(trained.model, torch.tensor([3, 7, 9]))
