"""Slices of every kind of layer: moving one slice's weights moves that unit's activation and no other."""

import pytest
import torch
from torch import nn

from excise.errors import NeverSupportedError, NotYetSupportedError
from excise.slices import find_slices, whole_model_block
from excise.slices.activations import recording
from excise.task.parameters import trainable

torch.manual_seed(0)


class HuggingFaceConv1D(nn.Module):
    """The layout of transformers' Conv1D, a Linear whose weight is inputs × outputs."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


HuggingFaceConv1D.__name__ = "Conv1D"


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x):
        return self.attention(x, key=x + 1, value=x - 1)[0]


CASES = {
    "linear": (nn.Linear(5, 4), torch.randn(6, 5)),
    "linear on tokens": (nn.Linear(5, 4, bias=False), torch.randn(6, 3, 5)),
    "hugging face conv1d": (HuggingFaceConv1D(4, 5), torch.randn(6, 3, 5)),
    "conv1d": (nn.Conv1d(2, 4, 3), torch.randn(6, 2, 7)),
    "conv2d": (nn.Conv2d(2, 4, 3, bias=False), torch.randn(6, 2, 7, 7)),
    "grouped conv2d": (nn.Conv2d(4, 6, 3, groups=2), torch.randn(6, 4, 7, 7)),
    "depthwise conv2d": (nn.Conv2d(4, 4, 3, groups=4), torch.randn(6, 4, 7, 7)),
    "conv3d": (nn.Conv3d(2, 3, 2), torch.randn(6, 2, 4, 4, 4)),
    "transposed conv1d": (nn.ConvTranspose1d(3, 4, 2), torch.randn(6, 3, 5)),
    "transposed conv2d": (nn.ConvTranspose2d(3, 4, 2), torch.randn(6, 3, 5, 5)),
    "grouped transposed conv2d": (nn.ConvTranspose2d(4, 6, 2, groups=2), torch.randn(6, 4, 5, 5)),
    "attention": (SelfAttention(batch_first=True), torch.randn(6, 3, 8)),
    "attention, tokens first": (SelfAttention(bias=False), torch.randn(3, 6, 8)),
    "embedding": (nn.Embedding(7, 5), torch.randint(0, 7, (6, 9))),
}


def activations(model, slices, x):
    with torch.no_grad(), recording(model, slices) as take:
        model(x)
        return torch.cat(take(), dim=1)


@pytest.mark.parametrize("name", [name for name in CASES if "embedding" not in name])
def test_a_slice_is_all_and_only_what_its_unit_computes_with(name):
    model, x = CASES[name]
    slices = find_slices(model)
    before = activations(model, slices, x)
    assert before.shape == (6, len(slices))
    start = trainable(model)
    for number in range(len(slices)):
        block = slices.block([number])
        change = block.scatter(torch.randn(block.size(start)), start)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter += change[key]
            after = activations(model, slices, x)
            for key, parameter in model.named_parameters():
                parameter -= change[key]
        layer, _ = slices.locate(number)
        same_layer = slice(slices.offsets[layer], slices.offsets[layer + 1])
        moved = ((after - before)[:, same_layer].abs().max(0).values > 1e-4).nonzero().flatten()
        assert (moved + slices.offsets[layer]).tolist() == [number], slices.name(number)


@pytest.mark.parametrize("name", CASES)
def test_gather_undoes_scatter_and_blocks_cover_everything_once(name):
    model, _ = CASES[name]
    slices = find_slices(model)
    like = trainable(model)
    total = {key: torch.zeros_like(value) for key, value in like.items()}
    for number in range(len(slices)):
        block = slices.block([number])
        vector = torch.ones(block.size(like))
        spread = block.scatter(vector, like)
        assert torch.equal(block.gather(spread), vector)
        for key, value in spread.items():
            total[key] += value
    assert all((value == 1).all() for value in total.values())
    assert slices.block(range(len(slices))).size(like) == whole_model_block(model).size(like)


def test_activations_are_the_units_mean_outputs():
    conv, x = CASES["conv2d"]
    assert torch.allclose(activations(conv, find_slices(conv), x), conv(x).mean((2, 3)))
    attention, x = CASES["attention"]
    seen = activations(attention, find_slices(attention), x)
    inner = attention.attention
    q = nn.functional.linear(x, inner.in_proj_weight[:8], inner.in_proj_bias[:8]).mean(1)
    k = nn.functional.linear(x + 1, inner.in_proj_weight[8:16], inner.in_proj_bias[8:16]).mean(1)
    v = nn.functional.linear(x - 1, inner.in_proj_weight[16:], inner.in_proj_bias[16:]).mean(1)
    torch.testing.assert_close(seen, torch.cat([q, k, v, attention(x).mean(1)], dim=1))


def test_embedding_rows_are_seen_by_how_often_their_token_occurs():
    model, ids = CASES["embedding"]
    seen = activations(model, find_slices(model), ids)
    assert torch.equal(seen, nn.functional.one_hot(ids, 7).sum(1).float())


def test_names_and_layers_of_equal_shape():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    slices = find_slices(model)
    assert [slices.name(number) for number in (0, 3, 4, 11)] == ["0[0]", "0[3]", "2[0]", "3.0[3]"]
    with pytest.raises(IndexError):
        slices.name(12)
    block = slices.block([5])
    spread = block.scatter(torch.ones(5), trainable(model))
    assert [key for key, value in spread.items() if value.any()] == ["2.weight", "2.bias"]


def test_frozen_parameters_are_no_part_of_a_slice():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    slices = find_slices(model)
    assert [layer.name for layer in slices.layers] == ["1"]
    assert slices.block([0]).size(trainable(model)) == 1


def test_a_module_used_twice_is_seen_by_the_mean_of_its_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x))

    model, x = Twice(), torch.randn(6, 3)
    once = model.layer(x)
    seen = activations(model, find_slices(model), x)
    torch.testing.assert_close(seen, (once + model.layer(once)) / 2)


def tied():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    model[1].weight = model[0].weight
    return model


def in_two_places():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


def within_two_places():
    part = nn.Sequential(nn.Linear(3, 3))
    return nn.ModuleDict({"left": part, "right": part})


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (tied(), NotYetSupportedError, "1.weight and 0.weight are one tied parameter.*requires_grad_"),
        (in_two_places(), NotYetSupportedError, r"2.weight and 0.weight are one tied parameter.*untie it by cloning"),
        (within_two_places(), NotYetSupportedError, "right.0.weight and left.0.weight are one tied parameter"),
        (nn.Sequential(nn.LSTM(3, 3)), NotYetSupportedError, "0 is a LSTM"),
        (nn.Sequential(nn.EmbeddingBag(3, 3)), NotYetSupportedError, "0 is a EmbeddingBag"),
        (nn.Sequential(nn.MultiheadAttention(4, 2, kdim=3)), NotYetSupportedError, "0 is a MultiheadAttention"),
        (nn.Sequential(nn.LayerNorm(3), nn.ReLU()), NeverSupportedError, "no slices"),
        (nn.Linear(3, 3).requires_grad_(False), NeverSupportedError, "no slices"),
    ],
)
def test_what_would_not_be_treated_right_is_refused(model, error, message):
    with pytest.raises(error, match=message):
        find_slices(model)


def test_frozen_tied_weights_are_fine():
    for shared, width in ((tied(), 9), (in_two_places(), 3)):
        model = nn.Sequential(shared.requires_grad_(False), nn.Linear(width, 2))
        assert len(find_slices(model)) == 2
