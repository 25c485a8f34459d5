"""The registry of layer kinds: what is known, and what it takes to make another one known."""

import pytest
import torch
from torch import nn

from excise.slices import LayerKind, UnitView, find_slices, layer_kind
from excise.slices.activations import recording
from excise.slices.layers import KINDS, kind_of


@pytest.mark.parametrize(
    ("module", "kind", "axis", "head", "factors"),
    [
        (nn.Linear(2, 3), "linear", -1, True, True),
        (nn.Conv1d(1, 2, 1), "convolution", 1, False, True),
        (nn.Conv3d(1, 2, 1), "convolution", 1, False, True),
        (nn.ConvTranspose2d(1, 2, 1), "transposed convolution", 1, False, False),
        (nn.Embedding(4, 2), "embedding", None, False, True),
        (nn.MultiheadAttention(4, 2), "attention projection", None, False, False),
    ],
)
def test_what_is_known_of_the_kinds(module, kind, axis, head, factors):
    found = kind_of(module)
    assert (found.name, found.features_axis, found.is_linear_head, found.has_kfac(module)) == (
        kind,
        axis,
        head,
        factors,
    )


@pytest.mark.parametrize("module", [nn.LayerNorm(3), nn.ReLU(), nn.Sequential(), nn.LSTM(2, 2)])
def test_others_have_no_kind(module):
    assert kind_of(module) is None


def test_a_class_is_known_by_its_nearest_ancestor():
    class Mine(nn.Conv2d):
        pass

    assert kind_of(Mine(1, 2, 1)) is kind_of(nn.Conv2d(1, 2, 1))
    assert kind_of(nn.ConvTranspose2d(1, 2, 1)) is not kind_of(nn.Conv2d(1, 2, 1))


def test_a_name_alone_does_not_make_a_layer_of_hugging_face():
    class Conv1D(nn.Module):
        pass

    assert kind_of(Conv1D()) is None


def test_an_embedding_that_makes_its_ids_itself_has_no_factors():
    class Positions(nn.Embedding):
        def forward(self, mask):
            return super().forward(mask.cumsum(1))

    assert not kind_of(Positions(4, 2)).has_kfac(Positions(4, 2))


class Scaled(nn.Module):
    """A layer that nobody else knows: its weights are inputs × outputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(inputs, outputs))
        self.shift = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.matrix + self.shift


def test_another_kind_is_one_decorated_class(monkeypatch):
    model = nn.Sequential(Scaled(4, 5), nn.Tanh(), nn.Linear(5, 2))
    assert [layer.name for layer in find_slices(model).layers] == ["2"]
    monkeypatch.setitem(KINDS, Scaled, None)  # so that the kind is forgotten after the test

    @layer_kind(Scaled)
    class ScaledKind(LayerKind):
        name = "scaled"
        features_axis = -1

        def units(self, module):
            return module.matrix.shape[1]

        def views(self, _):
            return {"matrix": UnitView(lambda matrix: matrix.T), "shift": UnitView()}

    slices = find_slices(model)
    assert [(layer.name, layer.kind, layer.units) for layer in slices.layers] == [
        ("0", "scaled", 5),
        ("2", "linear", 2),
    ]
    x = torch.randn(6, 4)
    with torch.no_grad(), recording(model, slices) as take:
        model(x)
        assert torch.equal(take()[0], model[0](x))
    like = dict(model.named_parameters())
    assert slices.block([3]).gather(like).tolist() == [*model[0].matrix[:, 3].tolist(), 0.0]
