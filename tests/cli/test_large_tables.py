"""``excise blanket`` of tables that are too large: some of their rows, or on a cluster."""

import json
import time

import numpy as np
import pandas as pd
import pytest

from excise._support import cluster
from excise.statistics import _crew

pytest.importorskip("pyarrow")


@pytest.fixture
def run(run_main):
    return run_main


@pytest.fixture
def large(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"dose": rng.random(9000), "age": rng.random(9000), "sort": rng.choice(["u", "v"], 9000)})
    table["y"] = table["dose"] + 0.3 * rng.standard_normal(9000)
    table.to_parquet(tmp_path / "t.parquet", row_group_size=1000)
    table.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_command_with_a_sample(run, large, name):
    code, out, err = run("blanket", large / name, "--target", "y", "--sample", 1000)
    assert code == 0, err
    assert "Read 2,000 of 9,000 rows, drawn at random" in out
    words = " ".join(out.split())
    assert "Searched 1,000 of 9,000 rows, drawn at random; T is measured on 1,000 others, to ± " in words
    assert " of 4" in out
    assert "95 %" in out


def test_command_with_a_tolerance_as_json(run, large):
    code, out, _ = run("blanket", large / "t.parquet", "--target", "y", "--tolerance", 0.2, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["sampling"] == {
        "table_rows": 9000,
        "searched": 9000,
        "measured": 9000,
        "fresh": False,
        "tolerance": 0.2,
        "reached": True,
        "half_width": pytest.approx(0.04, abs=0.03),
    }
    step = found["blanket"][0]
    assert step["column"] == "dose"
    assert step["low"] < step["total"] < step["high"]
    assert step["stability"] == 1
    plain = json.loads(run("blanket", large / "t.parquet", "--target", "y", "--json")[1])
    assert "sampling" not in plain
    assert plain["blanket"][0] == {name: step[name] for name in ("column", "score", "total")}


def test_command_says_what_was_not_reached(run, large):
    code, _, err = run("blanket", large / "t.csv", "--target", "y", "--tolerance", 0.001, "--json")
    assert code == 0
    assert "warning: T is known to ± " in err
    assert "the table has no more rows" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sample", 1000, "--tolerance", 0.1], "give one of them"),
        (["--sample", 5], "Invalid value for '--sample'"),
        (["--tolerance", 0], "Invalid value for '--tolerance'"),
        (["--tolerance", 1], "Invalid value for '--tolerance'"),
    ],
)
def test_command_with_options_that_can_not_be(run, large, options, words):
    code, _, err = run("blanket", large / "t.csv", "--target", "y", *options)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--jobs", 2, "--cluster", "tcp://127.0.0.1:1"), "pass one of them"),
        (("--cluster", "tcp://127.0.0.1:1"), "no scheduler of Dask answers there within 0.3 s"),
        (("--cluster", "here"), "is no address of a scheduler"),
        (("--cluster", ""), "is no address of a scheduler"),
    ],
)
def test_a_bad_cluster_is_named_before_the_table_is_read(run, tmp_path, monkeypatch, options, words):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    began = time.monotonic()
    code, out, err = run("blanket", tmp_path / "not-there.csv", "--target", "y", *options)
    assert (code, out) == (1, "")
    assert words in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_cluster_says_what_this_machine_says(run, large, monkeypatch):
    distributed = pytest.importorskip("distributed")
    from excise.statistics._dask_crew import DaskCrew

    asked = []
    load = DaskCrew.load
    monkeypatch.setattr(cluster, "PATIENCE", 60)
    monkeypatch.setattr(_crew, "WORTH_SHARING", 1000)
    monkeypatch.setattr(DaskCrew, "load", lambda self, *given: (asked.append(self.count), load(self, *given))[1])
    blanket = ("blanket", large / "t.parquet", "--target", "y", "--json")
    alone = run(*blanket)
    assert asked == []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=":0"
    ) as workers:
        assert run(*blanket, "--cluster", workers.scheduler_address) == alone
    assert asked == [2]
    assert alone[0] == 0
