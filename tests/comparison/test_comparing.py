"""Methods side by side: scores are those of the models, tuning is blind to what is reported, and errors are told."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, cli, fit
from excise.baselines import GRIDS, METHODS
from excise.comparison import comparing, table
from excise.evidence.gap import Logits, divergence_gap
from excise.task.hashing import hash_of_model
from excise.task.requests import parse_request
from excise.training.retraining import retrain

FEW = ["fine-tune", "gradient-ascent", "excise-step"]


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@pytest.fixture(scope="module")
def task():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    data = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
    train, test = (TensorDataset(*(part[where] for part in data)) for where in (slice(300), slice(300, 900)))
    loss = nn.CrossEntropyLoss(reduction="none")
    start = Task(network(0), loss, train, test, weight_decay=1e-3)

    def again(ids, seed):
        return fit(replace(start, model=network(seed)), ids=ids, epochs=30, lr=0.2, seed=seed).model

    return replace(start, model=again(torch.arange(300), 0), retrain=again)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("retrained")


@pytest.fixture(scope="module")
def found(task, cache):
    before = hash_of_model(task.model)
    result = comparing.compare(task, "random:5%", methods=FEW, seeds=2, retrainings=2, cache=cache)
    assert hash_of_model(task.model) == before
    return result


def test_rows_begin_with_the_original_and_the_floor_and_go_on_by_gap(found):
    names = [row.method for row in found.rows]
    assert names[:2] == ["original", "retrained"]
    assert sorted(names[2:]) == sorted(FEW)
    gaps = [row.gap("nKLc")[0] for row in found.rows[2:]]
    assert gaps == sorted(gaps)
    assert found.rows[0].gap("nKLc")[0] == pytest.approx(1)
    assert found.rows[1].figure("Avg. Gap")[0] > 0  # retrained models differ from each other
    assert found.samples == 15


def test_settings_are_of_the_grid(found):
    for row in found.rows[2:]:
        assert row.settings in GRIDS[row.method]


def test_a_score_is_that_of_the_model(task, cache, found):
    """By hand, for fine-tuning and seed 1: on the second half of the held-out samples."""
    row = next(row for row in found.rows if row.method == "fine-tune")
    request = parse_request("random:5%", task, seed=1)
    model = METHODS["fine-tune"](task, task.model, request.ids, seed=1, **row.settings)
    truths = [retrain(task, request.ids, seed=2000 + k, cache=cache).model for k in range(2)]
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    images, labels = (part[order[300:].sort().values] for part in task.test_set.tensors)
    mine = task.train_set.tensors[0][list(request.ids)], task.train_set.tensors[1][list(request.ids)]

    def logits(one):
        with torch.no_grad():
            return Logits(one(mine[0]).double().numpy(), one(images).double().numpy())

    seen = logits(model)
    gap = divergence_gap(seen, logits(task.model), [logits(one) for one in truths], calibrated=True)
    score = row.scores[1]
    assert score.gaps["nKLc"].model == pytest.approx(gap.model, rel=1e-3)
    assert score.gaps["nKLc"].floor == pytest.approx(gap.floor, rel=1e-3)
    assert score.figures["TA"] == pytest.approx((seen.held_out.argmax(1) == labels.numpy()).mean())
    assert score.figures["UA"] == pytest.approx((seen.forget.argmax(1) != mine[1].numpy()).mean())
    losses = [
        nn.functional.cross_entropy(torch.tensor(said), truth, reduction="none").numpy()
        for said, truth in ((seen.forget, mine[1]), (seen.held_out, labels))
    ]
    alike = np.isin(labels.numpy(), mine[1].numpy())
    members = np.repeat([1, 0], [len(losses[0]), alike.sum()])
    auc = roc_auc_score(members, -np.concatenate([losses[0], losses[1][alike]]))
    assert score.figures["MIA"] == pytest.approx(auc, abs=1e-6)


def test_gaps_are_pooled_before_they_are_divided(found):
    row = found.rows[-1]
    gaps = [score.gaps["nKL"] for score in row.scores]
    above = sum(gap.model - gap.floor for gap in gaps)
    assert row.gap("nKL")[0] == pytest.approx(above / sum(gap.original - gap.floor for gap in gaps))
    assert 0 < row.gap("nKL")[1] < np.inf


def test_the_spread_of_equally_hard_seeds_is_that_of_their_shares():
    scores = [comparing.Score({"nKL": comparing.Gap(model, 3.0, 1.0)}, {}, 0.0, 0.0) for model in (1.2, 1.4, 2.0)]
    share, spread = comparing.Row("a", {}, tuple(scores)).gap("nKL")
    assert share == pytest.approx(np.mean([0.1, 0.2, 0.5]))
    assert spread == pytest.approx(np.std([0.1, 0.2, 0.5], ddof=1))


@pytest.mark.parametrize("spec", ["random:10", "hardest:10", "class:3", "class:3:9", "ids:5,6,7"])
def test_practice_is_as_many_other_samples(task, spec):
    asked, practice = parse_request(spec, task, seed=0), comparing._practice_request(spec, task)
    overlap = set(asked.ids) & set(practice.ids)
    assert len(overlap) <= (3 if spec == "random:10" else 0)
    assert practice.kind == asked.kind
    if spec != "class:3":
        assert len(practice) == len(asked)


def test_tuning_takes_the_setting_of_the_smallest_gap_but_pays_for_accuracy(monkeypatch):
    stages = comparing.Stages(enabled=False)
    made = {0.1: (0.5, 0.9), 0.2: (0.3, 0.9), 0.3: (0.0, 0.5)}  # gap and test accuracy by lr: the last is ruinous

    def run(_, settings, __):
        gap, accuracy = made[settings["lr"]]
        figures = {"RA": 0.9, "TA": accuracy}
        return comparing.Score({"nKLc": comparing.Gap(gap, 1.0, 0.0)}, figures, 1.0, 0.1)

    bench = SimpleNamespace(target={"RA": 0.9, "TA": 0.9}, run=run)
    monkeypatch.setitem(comparing.GRIDS, "fine-tune", [{"lr": lr} for lr in made])
    assert comparing._tuned(bench, "fine-tune", stages) == {"lr": 0.2}


def test_a_method_that_fails_does_not_stop_the_others(task, cache, monkeypatch):
    def broken(*_, **__):
        raise InputError("does not apply here.")

    monkeypatch.setitem(comparing.METHODS, "ssd", broken)
    result = comparing.compare(
        task, "random:5%", methods=["ssd", "fine-tune"], seeds=1, retrainings=2, tune=False, cache=cache
    )
    assert [row.method for row in result.rows] == ["original", "retrained", "fine-tune", "ssd"]
    assert "does not apply here." in table.markdown(result)


def test_methods_that_learn_from_test_samples_do_not_see_those_reported_on(task, cache, monkeypatch):
    seen = []

    def spy(_, model, __, *, seed, forgotten=(), held_out=None):  # noqa: ARG001 - the signature of a method
        seen.append(held_out)
        return model

    monkeypatch.setitem(comparing.METHODS, "regun", spy)
    monkeypatch.setitem(comparing.GRIDS, "regun", [{}])
    comparing.compare(task, "random:5%", methods=["regun"], seeds=1, retrainings=2, cache=cache)
    to_tune_by, reported = comparing._halves(task)
    assert len(seen) == 2
    assert all(torch.equal(held_out, to_tune_by) for held_out in seen)
    assert not torch.isin(reported, seen[0]).any()


def test_bad_input(task, cache):
    options = {"seeds": 1, "retrainings": 2, "cache": cache}
    with pytest.raises(InputError, match="fine-tune"):
        comparing.compare(task, "random:5%", methods=["fine-tun"], **options)
    with pytest.raises(InputError, match="nothing to compare"):
        comparing.compare(task, "random:5%", methods=["retrain"], **options)
    with pytest.raises(InputError, match="test_set"):
        comparing.compare(replace(task, test_set=None), "random:5%", **options)
    with pytest.raises(InputError, match="class 12"):
        comparing.compare(task, "class:12", **options)
    with pytest.raises(InputError, match="retrainings"):
        comparing.compare(task, "random:5%", seeds=1, retrainings=1, cache=cache)


@pytest.mark.slow
def test_the_command(task, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("excise.task.loading.load_task", lambda _: task)
    files = [tmp_path / "out.json", tmp_path / "out.png"]
    words = "compare --task a:b --forget random:5% --methods fine-tune --seeds 1 --retrainings 2 --no-tuning"
    done = CliRunner().invoke(
        cli.cli,
        [*words.split(), "--cache", str(cache), "--out", str(files[0]), "--plot", str(files[1])],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].split()[:4] == ["method", "nKLc", "nKL", "z"]
    assert [line.split()[0] for line in lines[1:4]] == ["original", "retrained", "fine-tune"]
    record = json.loads(files[0].read_text())
    assert [row["method"] for row in record["rows"]] == ["original", "retrained", "fine-tune"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
