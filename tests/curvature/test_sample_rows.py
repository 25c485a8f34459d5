"""Gradients of samples from one backward pass, in float64, against a pass for each; and kernels by whitened rows."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from excise import SampleWeighted, Task
from excise.curvature import sample_rows as module_of_rows
from excise.curvature.kfac import cache
from excise.curvature.margins import margin_rows
from excise.curvature.rows import DenseRows, OuterRows, joined
from excise.curvature.whitened import WhitenedRows
from excise.slices import find_slices
from tests import dense_rows

N = 11
DAMPING, MASS = 0.05, 37.0


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2, stride=2, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, dilation=2, padding="same"),
        nn.Flatten(),
        nn.Linear(54, 3, bias=False),
    )


def upsampling():
    return nn.Sequential(nn.ConvTranspose2d(2, 4, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3))


class Words(nn.Module):
    """Embeddings of tokens, one of them padding, and of positions that all samples share; attention; a residual."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(6, 8, padding_idx=0), nn.Embedding(5, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 7, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        places = self.positions(torch.arange(tokens.shape[1])[None])
        return self.head(self.encoder(self.words(tokens) + places).mean(1))


class TokensFirst(nn.Module):
    """Tokens in the place of the samples, and as many."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        every = torch.stack([x * scale for scale in range(1, N + 1)])
        return self.head(torch.tanh(self.body(every)).mean(0))


class Again(nn.Module):
    """A layer called twice, one whose weights are used outside of it too, and one whose output nobody uses."""

    def __init__(self):
        super().__init__()
        self.body, self.tied, self.unused, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        hidden = torch.tanh(self.tied(torch.tanh(self.body(self.body(x)))))
        self.unused(hidden)
        return self.head(functional.linear(hidden, self.tied.weight))


def partly_frozen():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    return model


INPUTS = {
    mlp: lambda: torch.randn(N, 4).double(),
    partly_frozen: lambda: torch.randn(N, 4).double(),
    cnn: lambda: torch.randn(N, 2, 5, 5).double(),
    upsampling: lambda: torch.randn(N, 2, 5, 5).double(),
    Words: lambda: torch.randint(0, 6, (N, 5)),
    TokensFirst: lambda: torch.randn(N, 4).double(),
    Again: lambda: torch.randn(N, 4).double(),
}
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]).double())


def problem(make, loss=None, inputs=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, found = make().double(), INPUTS[make]()
        if make is cnn:
            model(found)  # running statistics that are not 0 and 1
    labels = torch.arange(N) % 3
    if isinstance(loss, SampleWeighted):
        labels = torch.stack([labels, torch.arange(N) + 1], 1).double()
    return Task(model.eval(), loss or nn.CrossEntropyLoss(), TensorDataset(found if inputs is None else inputs, labels))


def flat(rows):
    return torch.cat([one.dense.flatten(1) for one in rows], 1)


@pytest.mark.parametrize("ids", [[3], range(N)], ids=["one", "all"])
@pytest.mark.parametrize("make", INPUTS)
def test_rows_are_those_of_a_backward_pass_for_each_sample(make, ids, monkeypatch):
    monkeypatch.setattr(module_of_rows, "BATCH", 4 if make is not TokensFirst else N)
    task, ids = problem(make), torch.tensor(ids)
    slices = find_slices(task.model)
    truth = dense_rows.margin_rows(task, task.model, slices.block(range(len(slices))), ids)
    torch.testing.assert_close(flat(margin_rows(task, task.model, slices, ids)[1]), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "loss", [None, WEIGHTED, SampleWeighted(nn.CrossEntropyLoss())], ids=["plain", "classes", "samples"]
)
@pytest.mark.parametrize("make", INPUTS)
def test_kernel_and_step_are_those_of_dense_rows(make, loss):
    task = problem(make, loss)
    slices, ids = find_slices(task.model), torch.arange(N)
    kept = cache(task, task.model, slices, ids, rank=3, exact=0)
    block = slices.block(range(len(slices)))
    rows = dense_rows.margin_rows(task, task.model, block, ids)
    solved = kept.solve_rows(block, rows, DAMPING) / MASS
    by = kept.whitenings(block, DAMPING, MASS)
    found = WhitenedRows.of(by, margin_rows(task, task.model, slices, ids)[1])
    few = found.at(ids[:4])
    close = {"rtol": 1e-7, "atol": 1e-7 * float((rows * solved).sum(1).max())}
    torch.testing.assert_close(found.kernel(found), rows @ solved.T, **close)
    some = [*range(4), *range(7, N)]
    torch.testing.assert_close(few.joined(found.at(ids[7:])).kernel(few), (rows @ solved.T)[some, :4], **close)
    weights = torch.linspace(-1, 2, N).double()
    size = float((weights @ solved).abs().max())
    torch.testing.assert_close(found.solved(weights), weights @ solved, rtol=1e-7, atol=1e-7 * size)


def asked_one_by_one(monkeypatch, task):
    """The layers whose rows took a backward pass for each sample."""
    asked, usual = [], module_of_rows.one_by_one

    def noticing(task, model, blocks, *rest):
        asked.extend(block.layer for block in blocks)
        return usual(task, model, blocks, *rest)

    monkeypatch.setattr(module_of_rows, "one_by_one", noticing)
    slices = find_slices(task.model)
    rows = margin_rows(task, task.model, slices, torch.arange(N))[1]
    return {slices.layers[number].name for number in asked}, rows


def test_only_what_can_not_be_seen_is_asked_one_by_one(monkeypatch):
    names, rows = asked_one_by_one(monkeypatch, problem(mlp))
    assert not names
    assert all(isinstance(one, OuterRows) for one in rows)
    assert not asked_one_by_one(monkeypatch, problem(cnn))[0]
    projections = {f"encoder.self_attn.{name}_proj" for name in ("q", "k", "v", "out")}
    assert asked_one_by_one(monkeypatch, problem(Words))[0] == projections | {"positions"}
    assert asked_one_by_one(monkeypatch, problem(upsampling))[0] == {"0"}


def test_what_a_layer_shows_is_not_believed_where_it_is_not_all(monkeypatch):
    assert asked_one_by_one(monkeypatch, problem(Again))[0] == {"tied"}
    assert asked_one_by_one(monkeypatch, problem(TokensFirst))[0] == {"body"}


def test_a_sample_that_is_no_number_spoils_no_other():
    task = problem(mlp)
    inputs = task.train_set.tensors[0].clone()
    inputs[6] = torch.nan
    spoiled = problem(mlp, inputs=inputs)
    slices = find_slices(task.model)
    found, truth = (flat(margin_rows(one, one.model, slices, torch.arange(N))[1]) for one in (spoiled, task))
    assert found[6].isnan().any()
    others = torch.arange(N) != 6
    torch.testing.assert_close(found[others], truth[others])


def test_rows_of_both_kinds_go_together():
    torch.manual_seed(0)
    outer = OuterRows(torch.randn(4, 2).double(), torch.randn(4, 3).double())
    other = DenseRows(torch.randn(5, 2, 3).double())
    truth = torch.einsum("nuw,muw->nm", outer.dense, other.dense)
    torch.testing.assert_close(outer.kernel(other), truth)
    torch.testing.assert_close(other.kernel(outer), truth.T)
    assert isinstance(joined([outer, outer]), OuterRows)
    torch.testing.assert_close(joined([outer, other]).dense, torch.cat([outer.dense, other.dense]))
