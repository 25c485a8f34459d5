"""``excise requests`` from a shell."""

import json
import re
import shlex
from pathlib import Path

import pytest

from excise.ledger.events import Entry
from excise.ledger.ledger import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "ledger.md"


@pytest.fixture
def here(run, tmp_path, monkeypatch):  # noqa: ARG001 - run makes the module of tasks
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXCISE_LEDGER", "requests.db")
    monkeypatch.setenv("EXCISE_AUTHOR", "officer")
    return tmp_path


def request_file(folder, person="c3", name="r-1"):
    entry = {
        "subject_request_type": "erasure",
        "subject_identities": [{"identity_type": "key", "identity_value": person}],
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"subject_request_id": name, **entry}))
    return str(file)


@pytest.fixture
def excise(here, run):  # noqa: ARG001 - to be there
    """Call a command that should succeed; gives what it printed."""

    def call(*words, code=0):
        done = run(*words)
        assert done.exit_code == code, done.output
        return done.stdout

    return call


PROCESS = ("requests", "process", "--task", "forget_factory:trained", "--method", "step", "--guard", "none")


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_from_submission_to_certificate(excise, here):
    said = excise("requests", "submit", request_file(here))
    assert said.startswith("r-1  pending, due ")
    assert "30 days left" in said or "31 days left" in said or "28 days left" in said
    listed = json.loads(excise("requests", "list", "--json"))
    assert [(one["subject_request_id"], one["status"]) for one in listed] == [("r-1", "pending")]
    done = json.loads(excise(*PROCESS, "--points", "50", "--json"))
    assert done["completed"] == ["r-1"]
    assert "completed" in excise("requests", "list")
    assert "wrote c.json" in excise("requests", "certificate", "r-1", "--out", "c.json")
    assert "whole: " in excise("requests", "verify")
    shown = json.loads(excise("requests", "show", "r-1", "--json"))
    assert [one["kind"] for one in shown["events"]] == ["received", "started", "completed", "certified"]
    assert {one["author"] for one in shown["events"]} == {"officer"}
    assert len(excise("requests", "log").splitlines()) == 2
    excise("requests", "checkout", "head", "--task", "forget_factory:trained", "--out", "head.safetensors")
    assert "nothing to do" in excise(*PROCESS)


@pytest.mark.usefixtures("here")
def test_many_requests_from_standard_input(run):
    from click.testing import CliRunner

    from excise.cli import cli

    lines = "\n".join(
        json.dumps(
            {
                "subject_request_type": "erasure",
                "subject_identities": [{"identity_type": "key", "identity_value": f"c{number}"}],
            }
        )
        for number in range(30)
    )
    done = CliRunner().invoke(cli, ["requests", "submit"], input=lines)
    assert done.exit_code == 0, done.output
    assert "and 10 more" in done.output
    assert run("requests", "list", "--limit", "5").stdout.endswith("30 pending\n")


def test_the_register_is_exported(excise, here):
    for number in range(3):
        excise("requests", "submit", request_file(here, f"c{number}", f"r-{number}"))
    excise("requests", "deny", "r-1", "--reason", "=cmd|' /C calc'!A0")
    assert "3 requests" in excise("requests", "export", "--out", "register.csv")
    lines = (here / "register.csv").read_text().splitlines()
    assert lines[0].startswith("subject_request_id,status,received_time,due_date,days_left")
    assert [line.split(",")[1] for line in lines[1:]] == ["pending", "denied", "pending"]
    assert "'=cmd" in lines[2]  # no spreadsheet takes it for a formula
    excise("requests", "export", "--out", "register.json")
    assert [one["status"] for one in json.loads((here / "register.json").read_text())] == [
        "pending",
        "denied",
        "pending",
    ]
    assert excise("requests", "list", "--csv", "--status", "denied").count("\n") == 2


def test_a_request_is_cancelled(excise, here):
    excise("requests", "submit", request_file(here))
    assert "r-1  cancelled: withdrawn" in excise("requests", "cancel", "r-1", "--reason", "withdrawn")


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_a_subject_nobody_knows_is_denied(excise, here):
    excise("requests", "submit", request_file(here, "nobody"))
    assert "r-1  denied" in excise(*PROCESS)
    assert "No sample of this subject" in excise("requests", "show", "r-1")


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_samples_are_requested_by_a_rule(excise):
    answer = json.loads(
        excise("requests", "submit", "--samples", "ids:3,9", "--task", "forget_factory:trained", "--json")
    )
    assert answer[0]["identity_types"] == ["sample", "sample"]
    assert "completed" in excise(*PROCESS, "--points", "50")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe\xff", b"null", b'{"subject_identities": []}', b'{"subject_identities": [{}]}'],
)
def test_files_that_hold_no_request_are_refused(run, here, content):
    (here / "bad.json").write_bytes(content)
    done = run("requests", "submit", "bad.json")
    assert done.exit_code == 1
    assert type(done.exception).__name__ in ("InputError", "SystemExit")
    assert run("requests", "list", "--json").stdout.strip() in ("", "[]")


def test_a_ledger_that_is_not_there_is_not_made_by_looking(run, here):
    for words in (["list"], ["show", "r-1"], ["verify"], ["log"], ["certificate", "r-1"]):
        done = run("requests", *words)
        assert done.exit_code == 1
        assert "there is no ledger yet" in str(done.exception)
    assert not list(here.glob("requests*"))


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_leftovers_are_listed_and_purged(excise, here):
    excise("requests", "submit", request_file(here))
    excise(*PROCESS, "--points", "50")
    assert "model version" in excise("requests", "leftovers")
    assert excise("requests", "purge").strip() == "nothing to remove"
    excise("requests", "retention", "--days", "0")
    assert "NOT whole" in excise("requests", "verify", code=1)
    assert excise("requests", "purge").startswith("removed ")
    assert "whole: " in excise("requests", "verify")
    assert excise("requests", "leftovers").strip() == "nothing is left over"
    assert len(list((here / "requests.files" / "models").glob("*.safetensors"))) == 1


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_a_request_that_is_tried_no_more_is_named(run, excise, here):
    excise("requests", "submit", request_file(here))
    failed = {"attempts": 5, "error": "an OSError", "next_attempt_time": "2026-01-01T00:00:00.000000Z"}
    with Ledger(here / "requests.db") as ledger, ledger.writing() as (_, record):
        record([Entry("failed", failed, "r-1")])
    done = run(*PROCESS)
    assert done.exit_code == 1
    assert "failed 5 times, and not tried again until the cause is mended and you reopen them: r-1" in done.stderr
    assert "nothing to do" not in done.stdout
    excise("requests", "reopen", "r-1")
    assert "r-1  completed" in excise(*PROCESS, "--points", "50")


@pytest.mark.slow
def test_the_walk_in_the_docs_is_as_it_is_written(run_main, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "request.json").write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    commands = re.search(r"```sh\n(export .*?)```", text, re.DOTALL)[1]
    assert len(commands.strip().splitlines()) == 6  # the ledger's name, and five
    (export, setting), *others = (shlex.split(line) for line in commands.strip().splitlines())
    assert export == "export"
    monkeypatch.setenv(*setting.split("="))
    printed = said = ""
    for program, *words in others:
        assert program == "excise"
        code, out, err = run_main(*words)
        assert code == 0, err
        printed, said = printed + out, said + err
    assert "dsr-2026-0001  completed" in printed
    assert "customer-17" not in printed + said
