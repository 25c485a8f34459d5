"""``excise population``."""

import json
import subprocess
import sys

import pytest

OPTIONS = ("--task", "forget_factory:trained", "--forget", "ids:1,5,9", "--models", 6, "--cache", "kept")


@pytest.mark.slow
def test_a_run_prints_tables_and_writes_json(run, tmp_path):
    done = run("population", *OPTIONS, "--methods", "step, fine-tune", "--out", "found.json")
    assert done.exit_code == 0, done.output
    flat = " ".join(done.output.split())
    for words in (
        "ids:1,5,9: 3 samples, 6 models a side",
        "U-LiRA",
        "fine-tune",
        "nothing done",
        "retrained (floor)",
        "6 models a side are too few",
        "KLoM needs about 100 models a side",
        "wrote found.json",
    ):
        assert words in flat
    record = json.loads((tmp_path / "found.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["nothing done", "step", "fine-tune"]
    assert (record["models"], record["seed"], record["is_enough"]) == (6, 0, False)
    assert len(list((tmp_path / "kept").glob("model-*"))) == 12

    again = run("population", *OPTIONS, "--methods", "step", "--markdown")
    assert again.exit_code == 0, again.output
    lines = again.stdout.splitlines()
    assert lines[0].startswith("| method | U-LiRA AUC | TPR/FPR % | KLoM95 forget | KLoM95 test | score |")
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| nothing done", "| step", "| retrained (floor)"]
    assert {line.replace("\\|", "").count("|") for line in lines[:5]} == {17}
    assert len(list((tmp_path / "kept").glob("model-*"))) == 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--models", 5), "x>=6"),
        (("--models", "many"), "many"),
        (("--seed", -1), "--seed"),
        (("--seed", 10**13), "seed must be 1000000000000 or less"),
        (("--methods", " , "), "has no method"),
        (("--methods", "nonsense"), "nonsense"),
        (("--forget", "nonsense:1"), "nonsense"),
        (("--task", "forget_factory:missing"), "missing"),
        (("--task", "forget_factory:task"), "needs task.test_set"),
        (("--out", "found.txt"), ".json"),
        (("--out", "no/such/folder/found.json"), "--out"),
    ],
)
def test_bad_options_are_named_before_any_training(options, words, run, tmp_path):
    done = run("population", *OPTIONS, *options)
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"
    assert not (tmp_path / "kept").exists()


def test_task_and_request_are_needed(run):
    assert "Missing option '--task'" in run("population", "--forget", "random:1%").output
    assert "Missing option '--forget'" in run("population", "--task", "a:b").output


def test_help_loads_no_torch():
    code = "import sys; from excise.cli import cli; cli(['population', '--help'], standalone_mode=False); "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert not {'torch', 'rich', 'numpy'} & set(sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--methods" in done.stdout
