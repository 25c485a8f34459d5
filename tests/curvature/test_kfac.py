"""The kept curvature, in float64, against dense matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import Task, Unlearner
from excise.curvature import curvature
from excise.kfac import KINDS, _capturing, _patches, cache, can_cache
from excise.linear import features, has_features
from excise.sampling import systematic
from excise.slices import find_slices

N = 9
EVERYTHING = 10**6


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 2, groups=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3, bias=False)
    )


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x)).mean(1))


INPUTS = {
    mlp: lambda: torch.randn(N, 4).double(),
    cnn: lambda: torch.randn(N, 2, 3, 3).double(),
    Text: lambda: torch.randint(0, 6, (N, 5)),
}
LOSSES = {
    "cross-entropy": (nn.CrossEntropyLoss(reduction="none"), lambda: torch.randint(0, 3, (N,))),
    "weighted": (
        nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double(), reduction="none"),
        lambda: torch.randint(0, 3, (N,)),
    ),
    "squares": (nn.MSELoss(reduction="none"), lambda: torch.randn(N, 3).double()),
}


def problem(make, loss="cross-entropy"):
    torch.manual_seed(0)
    function, targets = LOSSES[loss]
    return Task(make().double().eval(), function, TensorDataset(INPUTS[make](), targets()), weight_decay=0.1)


def kept(task, **options):
    slices = find_slices(task.model)
    return slices, cache(task, task.model, slices, torch.arange(N), **options)


@pytest.mark.parametrize("make", [mlp, cnn, Text])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_all_rows_kept_exactly_are_the_gauss_newton_matrix(make, loss):
    task = problem(make, loss)
    slices, found = kept(task, rows=EVERYTHING, exact=EVERYTHING)
    block = slices.block(range(1, len(slices), 2))
    like = torch.zeros(1).double()
    truth = curvature(task, task.model, block, range(N)).dense(like) + 0.1 * torch.eye(block.size(parameters(task)))
    slope = torch.randn(len(truth)).double()
    assert torch.allclose(found.solve(block, slope, damping=0.1), torch.linalg.solve(truth, slope))


def parameters(task):
    return dict(task.model.named_parameters())


@pytest.mark.parametrize("make", [mlp, cnn, Text])
@pytest.mark.parametrize("exact", [0, 4])
@pytest.mark.parametrize("rank", [2, 64])
def test_the_solve_is_that_of_the_dense_matrix(make, exact, rank):
    task = problem(make)
    slices, found = kept(task, rows=20, exact=exact, rank=rank)
    block = slices.block(range(0, len(slices), 2))
    dense = torch.block_diag(*[kronecker(found.factors[chosen.layer], chosen.units) for chosen in block.chosen])
    rows = torch.cat([found.rows[chosen.layer][:, chosen.units].flatten(1) for chosen in block.chosen], 1)
    truth = dense + rows.T @ rows + 0.1 * torch.eye(len(dense)).double()
    slope = torch.randn(len(truth)).double()
    assert torch.allclose(found.solve(block, slope, damping=0.1), torch.linalg.solve(truth, slope))
    divided = found.precondition(block, 0.1)(slope)
    assert torch.allclose(divided, torch.linalg.solve(dense + 0.1 * torch.eye(len(dense)).double(), slope))


def kronecker(factors, units):
    between = torch.diag(factors.between) if factors.between.ndim == 1 else factors.between
    rest = torch.eye(len(factors.vectors)).double() - factors.vectors @ factors.vectors.T
    inputs = factors.vectors @ torch.diag(factors.values) @ factors.vectors.T + factors.rest * rest
    return torch.kron(between[units][:, units], inputs)


def test_factors_of_one_linear_layer_and_one_sample_are_exact():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1, 4).double(), torch.tensor([1]))
    task = Task(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(reduction="none"), data)
    slices = find_slices(task.model)
    found = cache(task, task.model, slices, [0], rows=EVERYTHING, exact=0)
    truth = curvature(task, task.model, slices.block(range(3)), [0]).dense(torch.zeros(1).double())
    assert torch.allclose(kronecker(found.factors[0], torch.arange(3)), truth)


def test_factors_of_a_convolution_are_sums_over_rows_and_means_over_patches():
    task = problem(cnn)
    _, found = kept(task, rows=EVERYTHING, exact=0)
    images, layer = task.train_set.tensors[0], task.model[0]
    patches = (
        functional.unfold(images, 2).reshape(N, 2, 4, 4).permute(0, 3, 1, 2).reshape(-1, 4)
    )  # 2 groups of 1 × 2 × 2
    patches = torch.cat([patches, torch.ones(len(patches), 1).double()], 1)
    truth = patches.T @ patches / len(patches)
    factors = found.factors[0]
    assert torch.allclose(factors.vectors @ torch.diag(factors.values) @ factors.vectors.T, truth)
    total = torch.zeros(4, 4).double()
    for image in images:
        before = layer(image[None]).detach().requires_grad_()
        output = task.model[1:](before.clone())[0]
        p = output.softmax(0).detach()
        for c in range(3):
            cotangent = (p[c] / N).sqrt() * (torch.eye(3).double()[c] - p)
            (delta,) = torch.autograd.grad(output, before, cotangent, retain_graph=True)
            delta = delta[0].flatten(1)
            total += delta @ delta.T
    assert torch.allclose(factors.between, total)


def test_rows_of_forgotten_samples_are_left_out():
    task = problem(mlp)
    slices, found = kept(task, rows=EVERYTHING, exact=EVERYTHING)
    block, slope = slices.block(range(len(slices))), torch.randn(43).double()
    others = [i for i in range(N) if i not in (2, 5)]
    truth = curvature(task, task.model, block, others).dense(slope) * len(others) / N + 0.1 * torch.eye(43)
    assert torch.allclose(found.solve(block, slope, damping=0.1, without={2, 5}), torch.linalg.solve(truth, slope))


CONVOLUTIONS = {
    "strided": nn.Conv2d(2, 4, 3, stride=2, padding=1),
    "dilated": nn.Conv2d(2, 4, (2, 3), dilation=(2, 1), padding=(0, 1)),
    "same": nn.Conv2d(2, 4, 4, padding="same"),
    "reflecting": nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
    "grouped": nn.Conv2d(4, 6, 3, groups=2),
    "one-dimensional": nn.Conv1d(2, 3, 3, stride=2),
    "three-dimensional": nn.Conv3d(2, 3, 2, padding=1),
}


@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_patches_are_what_the_filters_see(name):
    module = CONVOLUTIONS[name]
    torch.manual_seed(0)
    images = torch.randn(2, module.in_channels, *[6] * len(module.kernel_size))
    patches = _patches(module, images, EVERYTHING, torch.Generator().manual_seed(0))
    patches = patches.reshape(2, -1, module.groups, patches.shape[1])
    weight = module.weight.flatten(1).reshape(module.groups, -1, patches.shape[-1])
    seen = torch.einsum("npgw,guw->npgu", patches, weight).flatten(2) + module.bias
    places = torch.randperm(seen.shape[1], generator=torch.Generator().manual_seed(0))
    assert torch.allclose(seen, module(images).flatten(2).transpose(1, 2)[:, places], atol=1e-5)


def test_watching_leaves_outputs_and_global_randomness_alone():
    task = problem(cnn)
    x = task.train_set.tensors[0]
    before = torch.random.get_rng_state()
    plain = task.model(x)
    with _capturing(task.model, find_slices(task.model)) as calls:
        assert torch.equal(task.model(x), plain)
        assert [len(seen) for seen in calls] == [1, 1]
        assert (calls[0][0][1] < 0).any()  # as the convolution gave it, not as the ReLU in place left it
    kept(task)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_other_layers_fall_back_to_conjugate_gradients():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 3, 4), torch.randint(0, 3, (N,)))
    task = Task(Attention(), nn.CrossEntropyLoss(reduction="none"), data)
    slices = find_slices(task.model)
    assert not can_cache(task, task.model, slices)
    assert any(layer.kind not in KINDS for layer in slices.layers)
    done = Unlearner(task, copies=16).forget([0])
    assert done.forget_loss[1] > done.forget_loss[0]


@pytest.mark.parametrize("bias", [True, False])
def test_features_give_the_curvature_of_an_output_layer(bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias)).double()
    model[0].requires_grad_(False)
    task = Task(model, nn.CrossEntropyLoss(reduction="none"), problem(mlp).train_set)
    slices = find_slices(model)
    assert has_features(task, model, slices)
    seen = features(task, model, slices, torch.arange(N))
    block = slices.block([0, 2])
    like = torch.zeros(1).double()
    without = [1, 4]
    truth = curvature(task, model, block, [i for i in range(N) if i not in without]).dense(like)
    assert torch.allclose(seen.curvature(task, model, block, without).dense(like), truth)


def test_hidden_layers_have_no_features():
    task = problem(mlp)
    assert not has_features(task, task.model, find_slices(task.model))
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()  # its layer is not the output
    assert not has_features(Task(model, task.loss, task.train_set), model, find_slices(model))


@given(
    sizes=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e6)), min_size=1, max_size=40),
    count=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_systematic_draws(sizes, count, seed):
    sizes = torch.tensor(sizes, dtype=torch.float64)
    drawn, inclusion = systematic(sizes, count, torch.Generator().manual_seed(seed))
    some = int((sizes > 0).sum())
    assert len(drawn) == len(drawn.unique()) == len(inclusion)
    assert (sizes[drawn] > 0).all()
    assert ((inclusion > 0) & (inclusion <= 1)).all()
    assert abs(len(drawn) - min(count, some)) <= 1  # the last whole number may be missed by rounding
    if count >= some:
        assert len(drawn) == some
    else:
        order = sizes[drawn].argsort()
        assert (inclusion[order].diff() >= -1e-12).all()


def test_systematic_draws_are_unbiased():
    torch.manual_seed(0)
    sizes, values = torch.rand(30) ** 3, torch.randn(30).double()
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(4000):
        drawn, inclusion = systematic(sizes, 8, generator)
        estimates.append(float((values[drawn] / inclusion).sum()))
    estimates = torch.tensor(estimates)
    assert abs(estimates.mean() - values.sum()) < 4 * estimates.std() / 4000**0.5
