"""What tests of the ledger share: a clock, a place on a server, and a small network that forgets quickly."""

import itertools
from datetime import UTC, datetime, timedelta

import torch
from sqlalchemy import create_engine, text
from torch import nn
from torch.utils.data import TensorDataset

import excise

PEOPLE = 30
NUMBERS = itertools.count()


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.time = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self):
        self.time += timedelta(milliseconds=1)
        return self.time

    def pass_days(self, days):
        self.time += timedelta(days=days)


def new_schema(server):
    """A URL of an empty schema on the server, which is as good as a database and quicker made."""
    name = f"ledger_{next(NUMBERS)}_{datetime.now(UTC):%H%M%S%f}"
    engine = create_engine(server.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(f'CREATE SCHEMA "{name}"'))
    engine.dispose()
    return f"{server}&options=-csearch_path%3D{name}"


def make_task(people=PEOPLE, each=4):
    """A trained network, with a few samples a person and data that it never saw."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(people * each + 100, 4, generator=generator)
    y = (x[:, 0] + x[:, 1].abs() > 0.5).long()
    here = people * each
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    made = excise.Task(
        network,
        nn.CrossEntropyLoss(),
        TensorDataset(x[:here], y[:here]),
        TensorDataset(x[here:], y[here:]),
        weight_decay=1e-3,
        keys=[f"person-{place // each}" for place in range(here)],
    )
    return made.with_model(excise.fit(made, epochs=60, lr=0.1, seed=0).model)
