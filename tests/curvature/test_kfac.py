"""The kept curvature, in float64, against dense matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import Task, Unlearner
from excise._support.sampling import draw_proportionally
from excise.curvature import curvature
from excise.curvature.factors import Diagonal, KroneckerFactors
from excise.curvature.kfac import cache, can_cache
from excise.curvature.last_layer import last_layer_inputs, trains_only_last_layer
from excise.curvature.sample_rows import capturing
from excise.slices import find_slices
from excise.slices.layers import kind_of

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


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def upsampling():
    return nn.Sequential(
        nn.ConvTranspose2d(2, 4, 2, groups=2), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 3)
    )


class OwnPositions(nn.Embedding):
    """Counts its ids itself."""

    def forward(self, words):
        return super().forward(torch.arange(words.shape[1]).expand(len(words), -1))


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions, self.head = nn.Embedding(6, 4), OwnPositions(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x) * self.positions(x)).mean(1))


INPUTS = {
    mlp: lambda: torch.randn(N, 4).double(),
    cnn: lambda: torch.randn(N, 2, 3, 3).double(),
    Text: lambda: torch.randint(0, 6, (N, 5)),
    Attention: lambda: torch.randn(N, 3, 4).double(),
    upsampling: lambda: torch.randn(N, 2, 3, 3).double(),
    Positions: lambda: torch.randint(0, 6, (N, 5)),
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


@pytest.mark.slow
@pytest.mark.parametrize("make", list(INPUTS))
@pytest.mark.parametrize("loss", list(LOSSES))
def test_all_rows_kept_exactly_are_the_gauss_newton_matrix(make, loss):
    task = problem(make, loss)
    slices, found = kept(task, rows=EVERYTHING, exact=EVERYTHING)
    block = slices.block(range(1, len(slices), 2))
    like = torch.zeros(1).double()
    truth = curvature(task, task.model, block, range(N)).dense(like) + 0.1 * torch.eye(block.size(parameters(task)))
    gradient = torch.randn(len(truth)).double()
    assert torch.allclose(found.solve(block, gradient, damping=0.1), torch.linalg.solve(truth, gradient))


def parameters(task):
    return dict(task.model.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("make", list(INPUTS))
@pytest.mark.parametrize("exact", [0, 4])
@pytest.mark.parametrize("rank", [2, 64])
def test_the_solve_is_that_of_the_dense_matrix(make, exact, rank):
    task = problem(make)
    slices, found = kept(task, rows=20, exact=exact, rank=rank)
    block = slices.block(range(0, len(slices), 2))
    dense = torch.block_diag(*[dense_of(found.factors[chosen.layer], chosen.units) for chosen in block.chosen])
    rows = torch.cat([found.rows[chosen.layer].dense[:, chosen.units].flatten(1) for chosen in block.chosen], 1)
    truth = dense + rows.T @ rows + 0.1 * torch.eye(len(dense)).double()
    gradient = torch.randn(len(truth)).double()
    assert torch.allclose(found.solve(block, gradient, damping=0.1), torch.linalg.solve(truth, gradient))
    divided = found.precondition(block, 0.1)(gradient)
    assert torch.allclose(divided, torch.linalg.solve(dense + 0.1 * torch.eye(len(dense)).double(), gradient))


def dense_of(factors, units):
    if isinstance(factors, Diagonal):
        return torch.diag(factors.values[units].flatten())
    outputs, vectors = factors.output_factor, factors.input_eigenvectors
    outputs = torch.diag(outputs) if outputs.ndim == 1 else outputs
    rest = torch.eye(len(vectors)).double() - vectors @ vectors.T
    inputs = vectors @ torch.diag(factors.input_eigenvalues) @ vectors.T + factors.mean_of_rest * rest
    return torch.kron(outputs[units][:, units], inputs)


def test_factors_of_one_linear_layer_and_one_sample_are_exact():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1, 4).double(), torch.tensor([1]))
    task = Task(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(reduction="none"), data)
    slices = find_slices(task.model)
    found = cache(task, task.model, slices, [0], rows=EVERYTHING, exact=0)
    truth = curvature(task, task.model, slices.block(range(3)), [0]).dense(torch.zeros(1).double())
    assert torch.allclose(dense_of(found.factors[0], torch.arange(3)), truth)


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
    vectors = factors.input_eigenvectors
    assert torch.allclose(vectors @ torch.diag(factors.input_eigenvalues) @ vectors.T, truth)
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
    assert torch.allclose(factors.output_factor, total)


def test_rows_of_forgotten_samples_are_left_out():
    task = problem(mlp)
    slices, found = kept(task, rows=EVERYTHING, exact=EVERYTHING)
    block, gradient = slices.block(range(len(slices))), torch.randn(43).double()
    others = [i for i in range(N) if i not in (2, 5)]
    truth = curvature(task, task.model, block, others).dense(gradient) * len(others) / N + 0.1 * torch.eye(43)
    assert torch.allclose(
        found.solve(block, gradient, damping=0.1, without={2, 5}), torch.linalg.solve(truth, gradient)
    )


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
    patches = kind_of(module).kfac_inputs(module, images, EVERYTHING, torch.Generator().manual_seed(0))
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
    with capturing(task.model, find_slices(task.model).layers) as calls:
        assert torch.equal(task.model(x), plain)
        assert [len(seen) for seen in calls] == [1, 1]
        assert (calls[0][0][1] < 0).any()  # as the convolution gave it, not as the ReLU in place left it
    kept(task)
    assert torch.equal(torch.random.get_rng_state(), before)


UNSEEN = {Attention: 4, upsampling: 1, Positions: 1}


@pytest.mark.slow
@pytest.mark.parametrize("make", list(UNSEEN))
def test_a_layer_that_can_not_be_seen_has_the_diagonal_of_its_gauss_newton_matrix(make):
    task = problem(make)
    slices, found = kept(task, rows=EVERYTHING, exact=0)
    unseen = [place for place, factors in enumerate(found.factors) if isinstance(factors, Diagonal)]
    assert len(unseen) == UNSEEN[make]
    assert all(isinstance(one, KroneckerFactors) for place, one in enumerate(found.factors) if place not in unseen)
    for place in unseen:
        low, high = slices.offsets[place : place + 2]
        block = slices.block(range(low + 1, high))
        truth = curvature(task, task.model, block, range(N)).dense(torch.zeros(1).double()).diagonal()
        assert torch.allclose(found.factors[place].values[1:].flatten(), truth)
        gradient = torch.randn(len(truth)).double()
        assert torch.allclose(found.solve(block, gradient, damping=0.1), gradient / (truth + 0.1))


def test_one_unseen_layer_leaves_the_factors_of_the_others_as_they_are():
    task = problem(upsampling)
    _, together = kept(task, rows=20, exact=4)
    task.model[0].requires_grad_(False)
    _, alone = kept(task, rows=20, exact=4)
    for ours, theirs in zip(together.factors[1:], alone.factors, strict=True):
        assert torch.equal(ours.output_factor, theirs.output_factor)
        assert torch.equal(ours.input_eigenvalues, theirs.input_eigenvalues)


def test_a_model_of_unseen_layers_alone():
    task = problem(Attention)
    task.model.head.requires_grad_(False)
    slices, found = kept(task, rows=20, exact=4)
    assert all(isinstance(one, Diagonal) for one in found.factors)
    block = slices.block(range(len(slices)))
    assert found.solve(block, torch.randn(block.size(parameters(task))).double(), damping=0.1).isfinite().all()


def test_attention_is_forgotten_with_the_kept_curvature():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 3, 4), torch.randint(0, 3, (N,)))
    task = Task(Attention(), nn.CrossEntropyLoss(reduction="none"), data)
    assert can_cache(task, task.model, find_slices(task.model))
    done = Unlearner(task).forget([0])
    assert done.forget_loss[1] > done.forget_loss[0]


def test_outputs_that_are_not_one_row_a_sample_have_no_kept_curvature():
    class Tagger(Text):
        def forward(self, x):
            return self.head(self.words(x))

    for forward in (None, lambda model, batch: (model(batch[0]).flatten(0, 1), batch[1].flatten())):
        data = TensorDataset(INPUTS[Text](), torch.randint(0, 3, (N, 5)))
        task = Task(Tagger(), nn.CrossEntropyLoss(reduction="none"), data, forward=forward)
        assert not can_cache(task, task.model, find_slices(task.model))


@pytest.mark.parametrize("bias", [True, False])
def test_features_give_the_curvature_of_an_output_layer(bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias)).double()
    model[0].requires_grad_(False)
    task = Task(model, nn.CrossEntropyLoss(reduction="none"), problem(mlp).train_set)
    slices = find_slices(model)
    assert trains_only_last_layer(task, model, slices)
    seen = last_layer_inputs(task, model, slices, torch.arange(N))
    block = slices.block([0, 2])
    like = torch.zeros(1).double()
    without = [1, 4]
    truth = curvature(task, model, block, [i for i in range(N) if i not in without]).dense(like)
    assert torch.allclose(seen.curvature(task, model, block, without).dense(like), truth)


def test_hidden_layers_have_no_features():
    task = problem(mlp)
    assert not trains_only_last_layer(task, task.model, find_slices(task.model))
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()  # its layer is not the output
    assert not trains_only_last_layer(Task(model, task.loss, task.train_set), model, find_slices(model))


@pytest.mark.parametrize("inplace", [True, False])
def test_a_relu_that_is_the_identity_on_the_first_samples_is_noticed(inplace):
    torch.manual_seed(0)
    inputs = torch.cat([torch.ones(2, 4), torch.randn(40, 4)])
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=inplace))
    with torch.no_grad():
        model[0].bias.fill_(3.0)
    task = Task(model, nn.MSELoss(reduction="none"), TensorDataset(inputs, torch.rand(42, 3)), weight_decay=0.1)
    slices = find_slices(model)
    assert (model[0](inputs[:2]) > 0).all()
    assert trains_only_last_layer(task, model, slices)  # as far as the first samples tell
    assert last_layer_inputs(task, model, slices, torch.arange(2)) is not None
    with torch.no_grad():
        model[0].weight.mul_(5)
        model[0].weight.abs_()
    assert (model[0](inputs) < 0).any()
    assert trains_only_last_layer(task, model, slices)
    assert last_layer_inputs(task, model, slices, torch.arange(42)) is None
    assert Unlearner(task, guard=None).forget([5]).parameters_changed  # by the kept curvature alone


@given(
    sizes=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e6)), min_size=1, max_size=40),
    count=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_systematic_draws(sizes, count, seed):
    sizes = torch.tensor(sizes, dtype=torch.float64)
    drawn, inclusion = draw_proportionally(sizes, count, torch.Generator().manual_seed(seed))
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


@pytest.mark.slow
def test_systematic_draws_are_unbiased():
    torch.manual_seed(0)
    sizes, values = torch.rand(30) ** 3, torch.randn(30).double()
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(4000):
        drawn, inclusion = draw_proportionally(sizes, 8, generator)
        estimates.append(float((values[drawn] / inclusion).sum()))
    estimates = torch.tensor(estimates)
    assert abs(estimates.mean() - values.sum()) < 4 * estimates.std() / 4000**0.5


@pytest.mark.parametrize("make", [mlp, cnn])
def test_rows_are_solved_as_single_vectors(make):
    task = problem(make)
    slices = find_slices(task.model)
    kept = cache(task, task.model, slices, range(N), exact=0)
    block = slices.block(range(len(slices)))
    size = block.size(dict(task.model.named_parameters()))
    rows = torch.randn(3, size, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    slow = torch.stack([kept.solve(block, row, damping=0.1) for row in rows])
    assert torch.allclose(kept.solve_rows(block, rows, 0.1), slow)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_trace_is_that_of_the_dense_matrix(make):
    task = problem(make)
    slices = find_slices(task.model)
    kept = cache(task, task.model, slices, range(N), exact=3)
    block = slices.block(range(len(slices)))
    size = block.size(dict(task.model.named_parameters()))
    inverse = torch.stack([kept.solve(block, row, damping=1.0) for row in torch.eye(size, dtype=torch.double)])
    dense = torch.linalg.inv(inverse) - torch.eye(size, dtype=torch.double)
    assert kept.trace == pytest.approx(float(dense.trace()), rel=1e-6)
