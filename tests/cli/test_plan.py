"""``excise plan``."""

import json

import pytest

from excise import planning
from excise.planning.messages import Prices

real_plan = planning.plan


def plan_once(made, *given, **options):
    made.append(real_plan(*given, **options))
    return made[-1]


@pytest.mark.slow
def test_a_plan_is_printed_and_nothing_is_written(run, tmp_path, monkeypatch):
    prices = Prices({kind: [1e-3] * 6 for kind in ("words", "add", "spread", "objects")})
    monkeypatch.setattr("excise.planning.planning.prices_here", lambda: prices)  # else two processes are started
    made = []
    monkeypatch.setattr(planning, "plan", lambda *given, **told: made[-1] if made else plan_once(made, *given, **told))
    done = run("plan", "--task", "forget_factory:trained", "--seconds", 0.5, "--workers", 2)
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    flat = " ".join(done.output.split())
    for words in (
        "80 training samples",
        "prepare (default)",
        "request (drift)",
        "by workers 1 2",
        "audit with 3 retrainings",
    ):
        assert words in flat
    record = json.loads(run("plan", "--task", "forget_factory:trained", "--json").stdout)
    assert {work["name"] for work in record["works"]} >= {"certificate", "retraining", "audit of 3 retrained"}
    assert set(record["on_workers"]["audit with 3 retrainings"]) == {"1", "2"}
    assert len(made) == 1
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".pyc" and one.name != "__pycache__"] == [
        "forget_factory.py"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "one of --task and --table"),
        (("--task", "a:b", "--table", "10x10"), "one of --task and --table"),
        (("--table", "large"), "must be rows x columns"),
        (("--task", "forget_factory:missing"), "missing"),
        (("--task", "forget_factory:task", "--retrainings", 0), "x>=1"),
        (("--task", "forget_factory:task", "--seconds", 0), "x>0"),
    ],
)
def test_bad_options_are_named(options, words, run):
    done = run("plan", *options)
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
