"""``--jobs`` and ``--cluster``: the same answers by processes, and what is said of a cluster that is none."""

import json
import time

import pytest

from excise._support import cluster

POPULATION = ("population", "--task", "forget_factory:trained", "--forget", "ids:1,5,9", "--models", 6)
COMPARE = ("compare", "--task", "forget_factory:trained", "--forget", "ids:1,5,9", "--methods", "fine-tune")


def figures(record):
    """All but how long it took."""
    return [{name: value for name, value in row.items() if name not in ("seconds", "preparation")} for row in record]


@pytest.mark.slow
def test_a_population_and_a_comparison_by_processes_say_the_same(run, tmp_path):
    for cache, options in (("alone", ()), ("together", ("--jobs", 2))):
        done = run(*POPULATION, "--methods", "fine-tune", "--cache", cache, "--out", f"{cache}.json", *options)
        assert done.exit_code == 0, f"{done.output} {done.exception}"
    alone, together = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "together"))
    assert figures(alone["rows"]) == figures(together["rows"])
    assert figures([alone["floor"]]) == figures([together["floor"]])
    kept = [{one.name for one in (tmp_path / name).iterdir()} for name in ("alone", "together")]
    assert kept[0] == kept[1]

    for cache, options in (("alone", ()), ("together", ("--jobs", 2))):
        done = run(*COMPARE, "--no-tuning", "--seeds", 1, "--cache", f"{cache}2", "--out", f"{cache}2.json", *options)
        assert done.exit_code == 0, f"{done.output} {done.exception}"
    rows = [json.loads((tmp_path / f"{name}2.json").read_text())["rows"] for name in ("alone", "together")]
    for one, other in zip(*rows, strict=True):
        assert (one["method"], one["failed"]) == (other["method"], other["failed"])
        assert [score["gaps"] for score in one["scores"]] == [score["gaps"] for score in other["scores"]]
    assert {one.name for one in (tmp_path / "alone2").iterdir()} == {
        one.name for one in (tmp_path / "together2").iterdir()
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--jobs", 0), "x>=1"),
        (("--jobs", 2, "--cluster", "tcp://127.0.0.1:1"), "pass one of them"),
        (("--cluster", "tcp://127.0.0.1:1"), "no scheduler of Dask answers there within 0.3 s"),
        (("--cluster", "here"), "is no address of a scheduler"),
        (("--cluster", ""), "is no address of a scheduler"),
    ],
)
@pytest.mark.parametrize("command", [(*POPULATION, "--cache", "kept"), (*COMPARE, "--cache", "kept")])
def test_bad_workers_are_named_before_anything_is_done(command, options, words, run, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    began = time.monotonic()
    done = run(*command, *options)
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
    assert [one.name for one in tmp_path.iterdir()] == ["forget_factory.py"]
    assert time.monotonic() - began < 20


def test_a_forget_with_a_cluster_that_does_not_answer_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    asked = ("forget", "--task", "forget_factory:trained", "--ids", 3, "--out", "out.safetensors")
    done = run(*asked, "--report", "page.html", "--retrainings", 2, "--cluster", "tcp://127.0.0.1:1")
    assert "no scheduler of Dask answers" in str(done.exception)
    for options in ((), ("--report", "page.html")):
        assert "of which there are none" in str(run(*asked, *options, "--jobs", 2).exception)
    audited = ("audit", "--task", "forget_factory:trained", "--unlearned", "out.safetensors", "--jobs", 2)
    assert "of which there are none" in str(run(*audited).exception)
    assert [one.name for one in tmp_path.iterdir()] == ["forget_factory.py"]
