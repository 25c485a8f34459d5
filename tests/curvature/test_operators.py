"""Products and solves on blocks, in float64, against matrices written down by plain autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

from excise import InputError
from excise.curvature import (
    CG,
    GGN,
    Automatic,
    Cholesky,
    Operator,
    SampleSpace,
    curvature,
    ggn_rows,
    rank_one,
)
from excise.slices import find_slices, whole_model_block
from excise.task import Task
from excise.task.objective import gradient
from excise.task.parameters import trainable

torch.manual_seed(0)
N = 7
SOLVERS = {
    "cg": CG(200, 1e-12),
    "cholesky": Cholesky(),
    "sample-space": SampleSpace,  # whose rows are of the block
    "auto": Automatic(200),
}


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


def attention():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 2, batch_first=True)
            self.head = nn.Linear(2, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    return Model()


INPUTS = {mlp: (N, 4), cnn: (N, 1, 3, 3), attention: (N, 3, 2)}
LOSSES = {
    "cross-entropy": (nn.CrossEntropyLoss(reduction="none"), lambda: torch.randint(0, 3, (N,))),
    "squares": (nn.MSELoss(reduction="none"), lambda: torch.randn(N, 3).double()),
    "many labels": (nn.BCEWithLogitsLoss(reduction="none"), lambda: torch.randint(0, 2, (N, 3)).double()),
}


def problem(make, loss_name="cross-entropy"):
    model = make().double().eval()
    loss, targets = LOSSES[loss_name]
    return Task(model, loss, TensorDataset(torch.randn(INPUTS[make]).double(), targets()), weight_decay=0.1)


def vector(size):
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def flat_outputs(task, ids=range(N)):
    """Outputs as a function of one flat vector of all parameters, for plain autograd."""
    names = [name for name, _ in task.model.named_parameters()]
    shapes = [p.shape for p in task.model.parameters()]
    x, targets = task.train_set[list(ids)]

    def call(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(task.model, values, (x,))

    return call, torch.cat([p.detach().flatten() for p in task.model.parameters()]), targets


def dense(task, kind):
    """The matrix of the mean loss by its definition; the fused attention has no second derivatives."""
    with sdpa_kernel(SDPBackend.MATH):
        return _dense(task, kind)


def _dense(task, kind):
    network, w, targets = flat_outputs(task)

    def losses(w):
        return task.loss(network(w), targets).reshape(N, -1).mean(1)

    if kind == "hessian":
        return torch.autograd.functional.hessian(lambda w: losses(w).mean(), w)
    if kind == "fisher":
        G = torch.autograd.functional.jacobian(losses, w)
        return G.T @ G / N
    J = torch.autograd.functional.jacobian(network, w)
    outputs = network(w)
    total = torch.zeros(len(w), len(w)).double()
    for i in range(N):
        H = torch.autograd.functional.hessian(lambda o, i=i: task.loss(o[None], targets[i : i + 1]).mean(), outputs[i])
        total += J[i].T @ H @ J[i]
    return total / N


def embedding(task, block):
    """The block as columns of the identity, so that E C Eᵀ is the block of C."""
    like = trainable(task.model)
    size = block.size(like)
    rows = [torch.cat([t.flatten() for t in block.scatter(e, like).values()]) for e in torch.eye(size).double()]
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize("make", INPUTS)
@pytest.mark.parametrize("kind", ["ggn", "hessian", "fisher"])
@pytest.mark.parametrize("loss", LOSSES)
def test_products_equal_the_dense_matrix(make, kind, loss):
    task = problem(make, loss)
    slices = find_slices(task.model)
    truth = dense(task, kind)
    chosen = torch.randperm(len(slices))[:4].tolist()
    for block in (whole_model_block(task.model), slices.block(chosen)):
        E = embedding(task, block)
        operator = curvature(task, task.model, block, range(N), kind=kind, batch_size=4)
        torch.testing.assert_close(operator.dense(E), E @ truth @ E.T, atol=1e-10, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("make", INPUTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_square_to_the_gauss_newton_matrix(make, loss):
    task = problem(make, loss)
    block = find_slices(task.model).block([0, 2])
    V = ggn_rows(task, task.model, block, range(N), batch_size=4)
    E = embedding(task, block)
    torch.testing.assert_close(V.T @ V, E @ dense(task, "ggn") @ E.T, atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize("tie", ["a module used twice", "two modules of one weight"])
@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_what_is_used_twice_counts_twice_and_stays_in_the_model(tie, kind):
    first, second = (nn.Linear(3, 3, bias=False).double() for _ in range(2))
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), first if tie == "a module used twice" else second)
    x, y = torch.randn(N, 3).double(), torch.arange(N) % 3
    task = Task(model, nn.CrossEntropyLoss(), TensorDataset(x, y))
    weight = model[0].weight

    def losses(w):
        return functional.cross_entropy(torch.tanh(x @ w.view(3, 3).T) @ w.view(3, 3).T, y, reduction="none")

    truth = torch.autograd.functional.hessian(lambda w: losses(w).mean(), weight.detach().flatten())
    if kind == "fisher":
        G = torch.autograd.functional.jacobian(losses, weight.detach().flatten())
        truth = G.T @ G / N
    operator = curvature(task, model, whole_model_block(model), range(N), kind=kind)
    torch.testing.assert_close(operator.dense(weight.detach()), truth, atol=1e-10, rtol=1e-8)
    assert all(layer.weight is weight for layer in (model[0], model[2]))


def test_gradient_is_the_sum_over_the_samples():
    task = problem(mlp)
    found = gradient(task, task.model, [1, 5, 6], batch_size=2)
    x, y = task.train_set[[1, 5, 6]]
    expected = torch.autograd.grad(functional.cross_entropy(task.model(x), y, reduction="sum"), task.model.parameters())
    for part, truth in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(part, truth)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_solves_equal_the_dense_solve(solver):
    task = problem(mlp)
    block = find_slices(task.model).block([0, 1, 6])
    operator = curvature(task, task.model, block, range(N))
    b = vector(operator.size)
    if solver is SampleSpace:
        solver = SampleSpace(ggn_rows(task, task.model, block, range(N)))
    found = solver.solve(operator, b, damping=0.1)
    E = embedding(task, block)
    truth = torch.linalg.solve(E @ dense(task, "ggn") @ E.T + 0.1 * torch.eye(len(b), dtype=torch.float64), b)
    torch.testing.assert_close(found.x, truth, atol=1e-8, rtol=1e-6)
    assert found.residual < 1e-8
    assert found.damping == 0.1


def test_truncated_cg_stops_where_it_is_told_and_says_so():
    task = problem(mlp)
    operator = curvature(task, task.model, whole_model_block(task.model), range(N))
    b = vector(operator.size)
    short, long = (CG(k).solve(operator, b, damping=1e-3) for k in (2, 30))
    assert short.iterations == 2
    assert long.residual < short.residual


@pytest.mark.parametrize("solver", [CG(50, 1e-12), Cholesky()], ids=["cg", "cholesky"])
def test_an_indefinite_matrix_is_modified_until_the_solve_is_an_ascent_direction(solver):
    A = torch.diag(torch.tensor([3.0, 1.0, -2.0]).double())
    operator = Operator(3, lambda v: A @ v)
    b = torch.tensor([1.0, 1.0, 1.0]).double()
    found = solver.solve(operator, b, damping=0.1)
    assert found.damping > 2
    torch.testing.assert_close(found.x, torch.linalg.solve(A + found.damping * torch.eye(3), b), rtol=1e-5, atol=0)
    assert found.x @ b > 0


def test_rank_one_is_the_papers_finite_difference():
    task = problem(mlp)
    block = find_slices(task.model).block([0, 3])
    g = [{name: torch.randn_like(p) for name, p in trainable(task.model).items()} for _ in range(4)]
    operator = rank_one(block, (g[0], g[1]), (g[2], g[3]))
    d = block.gather(g[0]) - block.gather(g[1])
    truth = torch.outer(d, d) / (block.gather(g[2]) - block.gather(g[3])).abs().sum()
    torch.testing.assert_close(operator.dense(d), truth)
    with pytest.raises(InputError, match="same parameters"):
        rank_one(block, (g[0], g[1]), (g[2], g[2]))


def test_bad_options_are_named():
    task = problem(mlp)
    block = whole_model_block(task.model)
    operator = Operator(2, lambda v: v)
    b = torch.ones(2)
    with pytest.raises(InputError, match=r"kind must be one of .* Did you mean 'hessian'"):
        curvature(task, task.model, block, range(N), kind="hesian")
    with pytest.raises(InputError, match="Did you mean 'cholesky'"):
        GGN(solver="cholsky")
    for solver in (CG(), Cholesky(), Automatic()):
        with pytest.raises(InputError, match="damping must be"):
            solver.solve(operator, b, damping=-1)
    with pytest.raises(InputError, match="needs damping > 0"):
        SampleSpace(torch.eye(2)).solve(operator, b, damping=0.0)


def test_an_averaging_loss_is_refused():
    average = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)  # noqa: E731 - not torch's own
    task = Task(mlp(), average, TensorDataset(torch.randn(N, 4), torch.randint(0, 3, (N,))))
    with pytest.raises(InputError, match=r'one value per sample.*reduction="none"'):
        gradient(task, task.model, [0, 1])
