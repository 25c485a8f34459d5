"""Numbers at the edge of what numbers can be, and tasks that are none, through the library's functions."""

import numpy as np
import pytest
import torch
from fuzz.harness import Tried
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import excise
from excise import Drift, Task, Unlearner

EDGES = [0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 1.7976931348623157e308, 5e-324, 1e-310, 1e16, 1 + 2**-52]
NOT_FINITE = [np.inf, -np.inf, np.nan]


@st.composite
def columns(draw, rows, *, finite):
    """A column: usual, constant, of edges, or with something that is no number."""
    how = draw(st.sampled_from(["usual", "constant", "edges", "edges", "scaled", "shifted"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if how == "usual":
        values = rng.standard_normal(rows)
    elif how == "constant":
        values = np.full(rows, draw(st.sampled_from(EDGES)))
    elif how == "edges":
        values = rng.choice(draw(st.lists(st.sampled_from(EDGES), min_size=1, max_size=4)), rows)
    else:
        factor = 10.0 ** draw(st.integers(-320, 307))
        values = rng.random(rows) * factor if how == "scaled" else rng.random(rows) + factor
    if not finite and draw(st.integers(0, 3)) == 0 and rows:
        values[draw(st.integers(0, rows - 1))] = draw(st.sampled_from(NOT_FINITE))
    return values.astype(draw(st.sampled_from([np.float64, np.float64, np.float32, np.float16])))


@st.composite
def samples(draw):
    """A target, a table and another, of which the numbers of rows mostly agree."""
    rows = draw(st.integers(0, 12))
    make = columns(rows, finite=draw(st.booleans()))
    with np.errstate(over="ignore"):
        y, z = draw(make), np.stack([draw(make) for _ in range(draw(st.integers(1, 3)))], axis=1)
        return (y if draw(st.integers(0, 9)) else y[:-1]), z, draw(make)


@pytest.mark.slow
@np.errstate(all="ignore")
def test_statistics():
    tried = Tried("numbers")
    calls = {
        "xi": lambda case: excise.xi(case[2], case[0]),
        "codec": lambda case: excise.codec(case[0], case[1]),
        "codec given": lambda case: excise.codec(case[0], case[1], case[2]),
        "lcodec": lambda case: excise.lcodec(case[0], case[1][:, 0], case[2]),
        "foci": lambda case: excise.foci(case[1], case[0], n_jobs=1),
        "lfoci": lambda case: excise.lfoci(case[1], case[0], n_jobs=1),
    }

    @tried.on(samples(), st.sampled_from(sorted(calls)))
    def check(case, which):
        with tried.ending((which, case)):
            calls[which](case)

    check()
    tried.require()


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


class Lying(Dataset):
    """Says that it has more than it has."""

    def __len__(self):
        return 50

    def __getitem__(self, place):
        if place >= 20:
            raise IndexError(place)
        return torch.zeros(2), place % 2


def data(inputs, labels):
    return TensorDataset(inputs, labels)


X, Y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
SOUND = {
    "model": lambda: nn.Linear(2, 2),
    "loss": lambda: nn.CrossEntropyLoss(),
    "train_set": lambda: data(X, Y),
    "weight_decay": lambda: 0.01,
    "keys": lambda: None,
}
ODD = {
    "model": [
        lambda: None,
        lambda: "model",
        lambda: nn.Linear,
        lambda: nn.Sequential(),
        lambda: nn.ReLU(),
        lambda: nn.Linear(2, 2).requires_grad_(False),
        lambda: nn.Linear(3, 2),
        lambda: nn.Linear(2, 1),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LogSoftmax(-1)),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        lambda: nn.Bilinear(2, 2, 2),
        lambda: nn.LSTM(2, 2),
    ],
    "loss": [
        lambda: None,
        lambda: 3,
        lambda: nn.functional.cross_entropy,
        lambda: nn.MSELoss(),
        lambda: nn.BCEWithLogitsLoss(),
        lambda: nn.L1Loss(),
        lambda: nn.NLLLoss(),
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0])),
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, -2.0])),
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0])),
        lambda: nn.CrossEntropyLoss(ignore_index=0),
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum"),
        lambda: lambda outputs, _: outputs.sum(1) * float("nan"),
        lambda: lambda *_: 1.0,
        lambda: lambda outputs: outputs,
        lambda: lambda outputs, _: outputs.sum(1).detach(),
        lambda: lambda outputs, targets: -nn.functional.cross_entropy(outputs, targets, reduction="none"),
    ],
    "train_set": [
        lambda: None,
        lambda: [],
        lambda: Stream(),
        lambda: Lying(),
        lambda: X,
        lambda: [(X[k], int(Y[k])) for k in range(20)],
        lambda: [{"input": X[k], "labels": Y[k]} for k in range(20)],
        lambda: [{"input": X[k]} for k in range(20)],
        lambda: [(X[k].numpy(), int(Y[k])) for k in range(20)],
        lambda: [("text", 1)] * 20,
        lambda: [(X[k],) for k in range(20)],
        lambda: [(X[k][: k % 3], 0) for k in range(20)],
        lambda: {k: (X[k], Y[k]) for k in range(20)},
        lambda: data(X, Y + 1),
        lambda: data(X, Y - 1),
        lambda: data(X, Y.float()),
        lambda: data(X.long(), Y),
        lambda: data(X.half(), Y),
        lambda: data(X[:1], Y[:1]),
        lambda: data(X[:2], Y[:2]),
        lambda: data(X.double(), Y),
        lambda: data(X, torch.zeros(20, dtype=torch.long)),
        lambda: data(X[:, None], Y),
        lambda: data(torch.zeros(20, 0), Y),
        lambda: "twenty letters are it",
        lambda: __import__("pandas").DataFrame(X.numpy()),
    ],
    "weight_decay": [
        lambda: -1,
        lambda: None,
        lambda: "1",
        lambda: float("nan"),
        lambda: 1e308,
        lambda: 0,
        lambda: True,
    ],
    "keys": [lambda: [], lambda: list(range(20)), lambda: [[]] * 20, lambda: 3, lambda: ["a"] * 20, lambda: "ab" * 10],
}
IDS = [
    [3],
    [3, 5],
    [],
    [99],
    [-1],
    [1.5],
    "3",
    None,
    [True],
    torch.tensor([3]),
    np.array([3, 4]),
    range(20),
    [3, 3],
    [2**70],
]


@st.composite
def tasks(draw):
    """Which parts of a task are odd ones, and what is asked of it."""
    parts = draw(st.lists(st.sampled_from(sorted(ODD)), max_size=2, unique=True))
    return {name: draw(st.integers(0, len(ODD[name]) - 1)) for name in parts}


def attempt(fields, method, ids):
    torch.manual_seed(0)
    task = Task(**fields)
    done = Unlearner(task, method, n_jobs=1).forget(ids)
    done.summary()
    assert set(done.ids) <= set(range(len(task.train_set)))
    assert all(weight.isfinite().all() for weight in done.model.parameters())


@pytest.mark.slow
def test_task_objects():
    tried = Tried("task objects")

    @tried.on(tasks(), st.sampled_from(["step", "drift"]), st.one_of(st.just(0), st.integers(0, len(IDS) - 1)))
    def check(odd, method, which):
        fields = {name: ODD[name][odd[name]]() if name in odd else make() for name, make in SOUND.items()}
        with tried.ending((odd, method, IDS[which])):
            attempt(fields, method, IDS[which])

    check()
    tried.require()


@pytest.mark.slow
def test_tasks_with_extreme_numbers():
    """What comes out is finite, or it is refused."""
    tried = Tried("extreme tasks")

    @tried.on(
        st.lists(st.tuples(st.integers(0, 19), st.integers(0, 1), st.sampled_from(EDGES[4:] + NOT_FINITE)), max_size=3),
        st.sampled_from([1.0, 1e-30, 1e30, 0.0, 1e-40]),
        st.sampled_from([1.0, 1e20, 1e-20, 0.0, float("nan")]),
        st.sampled_from(["step", Drift(epochs=1)]),
    )
    def check(places, scale, weights, method):
        inputs = X * scale
        for row, column, value in places:
            inputs[row, column] = torch.tensor(value).float()
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= weights
        with tried.ending((places, scale, weights, method)):
            attempt({"model": model, "loss": nn.CrossEntropyLoss(), "train_set": data(inputs, Y)}, method, [3, 4])

    check()
    tried.require()
