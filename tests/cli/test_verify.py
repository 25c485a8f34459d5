"""``excise verify``: what it prints, its exit code, and the verifier that it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deletion_certificates import certificate_body

from excise.errors import InputError, MissingExtraError
from excise.ledger import verify as verifier
from excise.ledger.deletion_certificate import NOT_PROVEN, signed
from excise.ledger.keys import LedgerKeys


@pytest.fixture
def files(tmp_path):
    """A certificate, its key and its model."""
    keys = LedgerKeys.make(tmp_path / "keys")
    (tmp_path / "certificate.json").write_text(signed(certificate_body(), keys))
    (tmp_path / "model.safetensors").write_bytes(b"new")
    return tmp_path


def test_a_good_certificate_is_verified(run, files):
    arguments = ("verify", "certificate.json", "--key", "keys/signing.pub", "--model", "model.safetensors")
    done = run(*arguments)
    assert done.exit_code == 0
    findings = verifier.verify_files(*(files / arguments[place] for place in (1, 3, 5)))
    assert len(findings) == 6
    assert done.output == verifier.in_words(findings) + "\n"
    assert done.output.count("✓") == 6
    assert done.output.endswith(f"- {NOT_PROVEN[-1]}\n")


def test_an_altered_certificate_ends_in_1_and_the_reason(run, files):
    (files / "certificate.json").write_text((files / "certificate.json").read_text().replace("0.84", "0.85"))
    done = run("verify", "certificate.json", "--key", "keys/signing.pub")
    assert done.exit_code == 1
    assert "✗ signature: body and signature don't belong together" in done.output
    assert "NOT VERIFIED" in done.output
    done = run("verify", "certificate.json", "--key", "keys/signing.pub", "--json")
    assert done.exit_code == 1
    said = json.loads(done.output)
    assert said["verified"] is False
    assert [one["check"] for one in said["findings"] if not one["holds"]] == ["signature"]
    assert said["not_proven"] == list(NOT_PROVEN)


def test_the_model_before_is_not_the_certified_one(run, files):
    (files / "model.safetensors").write_bytes(b"old")
    done = run("verify", "certificate.json", "--key", "keys/signing.pub", "--model", "model.safetensors", "--json")
    assert done.exit_code == 1
    assert "the model before the deletion" in json.loads(done.output)["findings"][-1]["reason"]


@pytest.mark.parametrize("wrong", ["none.json", "keys", "keys/signing.pem"])
def test_files_that_are_none_are_findings(run, files, wrong):
    for arguments in ((wrong, "--key", "keys/signing.pub"), ("certificate.json", "--key", wrong)):
        done = run("verify", *arguments)
        assert done.exit_code == 1
        assert done.output.startswith("✗")
        assert (files / "keys" / "ledger.key").read_text().strip() not in done.output


@pytest.mark.parametrize("arguments", [[], ["certificate.json"], ["--key", "keys/signing.pub"]])
@pytest.mark.usefixtures("files")
def test_certificate_and_key_are_needed(run, arguments):
    done = run("verify", *arguments)
    assert done.exit_code == 2
    assert "Name a certificate, and the public key" in done.output


@pytest.mark.slow
def test_the_verifier_is_written_and_works_on_its_own(run, files):
    done = run("verify", "--write-verifier", "check.py")
    assert done.exit_code == 0
    assert (files / "check.py").read_bytes() == Path(verifier.__file__).read_bytes()
    command = [sys.executable, "check.py", "certificate.json", "--key", "keys/signing.pub"]
    alone = subprocess.run(
        command, cwd=files, capture_output=True, encoding="utf-8", env={"PYTHONUTF8": "1"}, check=True
    )
    assert alone.stdout == run("verify", *command[2:]).output


def test_a_verifier_is_written_alone_and_as_python(run, files):
    done = run("verify", "certificate.json", "--write-verifier", "check.py")
    assert isinstance(done.exception, InputError)
    assert not (files / "check.py").exists()
    assert isinstance(run("verify", "--write-verifier", "check.txt").exception, InputError)


@pytest.mark.usefixtures("files")
def test_without_cryptography_the_remedy_is_told(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    done = run("verify", "certificate.json", "--key", "keys/signing.pub")
    assert isinstance(done.exception, MissingExtraError)
    assert "pip install 'excise[ledger]'" in str(done.exception)


@pytest.mark.slow
def test_verifying_loads_no_torch_and_help_no_cryptography():
    code = (
        "import sys; from click.testing import CliRunner; from excise.cli import cli;"
        "assert CliRunner().invoke(cli, {}).exit_code == {};"
        "print(*({{'torch', 'cryptography', 'numpy'}} & set(sys.modules)))"
    )
    for arguments, ending in ((["verify", "--help"], 0), (["verify", "none", "--key", "none"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(arguments, ending)], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == []
