"""Noise and its budget: what was spent is spent, whoever asks."""

import json
import stat

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import excise
from excise.errors import InputError
from excise.ledger.policy import Policy
from excise.ledger.processing import Worker
from excise.ledger.retraining import register_retrained
from excise.ledger.verification import verify_ledger
from excise.privacy.accountant import BudgetAccountant
from excise.task.hashing import hash_of_model
from excise.task.weights import save_weights

EACH, TOTAL = (0.5, 1e-6), (1.2, 1e-5)
NOISY = Policy(epsilon=EACH[0], delta=EACH[1], total=TOTAL, batch=1, points=None)
FITS = BudgetAccountant(*TOTAL).capacity(*EACH)


@pytest.fixture(scope="module")
def convex():
    """A linear model at its minimum, of which distances are certified."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    data, held_out = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])
    keys = [f"person-{place // 4}" for place in range(120)]
    task = excise.Task(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, held_out, weight_decay=0.1, keys=keys)
    return task.with_model(excise.exact_fit(task).model)


def submit(ledger, *people):
    for person in people:
        ledger.submit(f"person-{person}", subject_request_id=f"r-{person}x")


def test_requests_stop_where_the_budget_ends(ledger, convex):
    assert 1 < FITS < 10
    submit(ledger, *range(FITS + 1))
    done = [Worker(ledger, convex, NOISY).run(most=1) for _ in range(FITS + 1)]  # a new worker each time
    assert [len(one.completed) for one in done] == [1] * FITS + [0]
    assert done[-1].requires_retraining == (f"r-{FITS}x",)
    assert "does not fit" in ledger.request(f"r-{FITS}x").reason
    body = json.loads(ledger.certificate(f"r-{FITS - 1}x"))["body"]
    assert body["budget"]["capacity"] == 0
    assert body["budget"]["epsilon"] == TOTAL[0]
    assert body["guarantee"]["kind"] == "convex"
    assert body["guarantee"]["epsilon"] <= EACH[0] * (1 + 1e-6)
    assert verify_ledger(ledger).is_whole


def test_a_failure_midway_spends_nothing(ledger, convex, clock, monkeypatch):
    submit(ledger, 1)
    with monkeypatch.context() as patched:
        patched.setattr("excise.ledger.carrying_out._measured", lambda _: 1 / 0)
        assert Worker(ledger, convex, NOISY).run().failed == ("r-1x",)
    clock.pass_days(1)
    assert Worker(ledger, convex, NOISY).run().completed == ("r-1x",)
    assert json.loads(ledger.certificate("r-1x"))["body"]["budget"]["capacity"] == FITS - 1


def test_the_budget_cannot_be_left_out_or_replaced(ledger, convex):
    submit(ledger, 1, 2)
    Worker(ledger, convex, NOISY).run(most=1)
    with pytest.raises(InputError, match="the ledger has a budget"):
        Worker(ledger, convex, Policy(method="exact")).run()
    more = Policy(epsilon=0.5, delta=1e-6, total=(50.0, 1e-5), points=None)
    with pytest.raises(InputError, match="not of 50"):
        Worker(ledger, convex, more).run()
    assert ledger.request("r-2x").status == "pending"
    unsaid = Policy(epsilon=EACH[0], delta=EACH[1], points=None)
    assert Worker(ledger, convex, unsaid).run().completed == ("r-2x",)
    assert json.loads(ledger.certificate("r-2x"))["body"]["budget"]["capacity"] == FITS - 2


def test_later_requests_go_on_from_the_weights_before_the_noise(ledger, convex):
    submit(ledger, 1, 2)
    Worker(ledger, convex, NOISY).run()
    versions = ledger.lineage()
    files = [ledger.folder / "models" / "secret" / f"{one.version}.safetensors" for one in versions[1:]]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    from excise.ledger.versions import ModelFiles

    clean = ModelFiles.of(ledger).read(versions[-1], convex.model, working=True)
    kept = torch.arange(120)[~torch.isin(torch.arange(120), torch.arange(4, 12))]
    exact = excise.exact_fit(convex, ids=kept).model
    torch.testing.assert_close(clean.weight, exact.weight, rtol=1e-3, atol=1e-3)
    noisy = ModelFiles.of(ledger).read(versions[-1], convex.model)
    assert hash_of_model(noisy) == versions[-1].version != hash_of_model(clean)


def test_a_retraining_begins_the_budget_anew(ledger, convex, tmp_path):
    submit(ledger, *range(FITS + 1))
    Worker(ledger, convex, NOISY).run()
    left = torch.arange(4 * (FITS + 1), 120)
    save_weights(excise.exact_fit(convex, ids=left).model, tmp_path / "new.safetensors")
    assert register_retrained(ledger, convex, tmp_path / "new.safetensors").completed == (f"r-{FITS}x",)
    submit(ledger, 20)
    assert Worker(ledger, convex, NOISY).run().completed == ("r-20x",)
    assert json.loads(ledger.certificate("r-20x"))["body"]["budget"]["capacity"] == FITS - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": (-1.0, 1e-5)},
        {"total": (float("nan"), 1e-5)},
        {"total": (2.0, 0.0)},
        {"total": (2.0,)},
        {"total": ("a", "b")},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"delta": 1.0},
    ],
)
def test_a_budget_that_nothing_fits_into_never_becomes_the_ledgers(wrong):
    with pytest.raises(InputError, match=r"epsilon|delta|total"):
        Policy(**{"epsilon": 0.5, "delta": 1e-6, **wrong})


def test_a_budget_does_not_begin_after_a_model_without_noise(ledger, convex, tmp_path):
    submit(ledger, 1, 2)
    Worker(ledger, convex, Policy(method="exact", batch=1, points=None)).run(most=1)
    with pytest.raises(InputError, match="version 1 was given out without noise"):
        Worker(ledger, convex, NOISY).run()
    assert ledger.request("r-2x").status == "pending"
    save_weights(excise.exact_fit(convex, ids=torch.arange(8, 120)).model, tmp_path / "new.safetensors")
    register_retrained(ledger, convex, tmp_path / "new.safetensors")
    assert Worker(ledger, convex, NOISY).run().completed == ("r-2x",)
