"""The verifier as a file of its own, which needs nothing but Python and cryptography."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import cryptography
import pytest

from excise.ledger import verify as module
from excise.ledger.deletion_certificate import NOT_PROVEN
from excise.ledger.verify import main, verify

SOURCE = Path(module.__file__)


@pytest.fixture(scope="session")
def bare(tmp_path_factory, certificate, key_folder):
    """A folder with the verifier, a certificate and a key, and one with nothing but cryptography."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "verify.py").write_bytes(SOURCE.read_bytes())
    (folder / "certificate.json").write_bytes(certificate)
    (folder / "signing.pub").write_bytes((key_folder / "signing.pub").read_bytes())
    (folder / "new.safetensors").write_bytes(b"new")
    packages = tmp_path_factory.mktemp("packages")
    for one in Path(cryptography.__file__).parents[1].iterdir():
        if one.name in ("cryptography", "cffi") or one.name.startswith("_cffi_backend"):
            (packages / one.name).symlink_to(one)
    return folder, packages


ALONE = """
import runpy, sys
sys.path.insert(0, {packages!r})
for name in ("excise", "torch", "numpy"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{{name}} is there")
sys.argv = ["verify.py", *{arguments!r}]
runpy.run_path("verify.py", run_name="__main__")
"""


def run_alone(bare, *arguments, packages=True, **environment):
    """Run it in a Python that sees neither excise nor torch, in its folder."""
    folder, place = bare
    code = ALONE.format(packages=str(place if packages else folder), arguments=arguments)
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=folder, capture_output=True, encoding="utf-8", env={"PYTHONUTF8": "1"} | environment, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_file_alone_verifies(bare):
    done = run_alone(bare, "certificate.json", "--key", "signing.pub", "--model", "new.safetensors")
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:6]] == [
        "✓ format", "✓ key", "✓ signature", "✓ absence", "✓ count", "✓ model",
    ]  # fmt: skip
    assert lines[6] == "verified"
    assert lines[-len(NOT_PROVEN) :] == [f"- {sentence}" for sentence in NOT_PROVEN]


@pytest.mark.slow
def test_the_file_alone_says_what_is_wrong_and_what_is_missing(bare):
    folder, _ = bare
    (folder / "altered.json").write_bytes((folder / "certificate.json").read_bytes().replace(b"197", b"196"))
    done = run_alone(bare, "altered.json", "--key", "signing.pub")
    assert (done.returncode, done.stderr) == (1, "")
    assert "✗ signature" in done.stdout
    assert "NOT VERIFIED" in done.stdout
    done = run_alone(bare, "certificate.json", "--key", "signing.pub", packages=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "verify.py needs the package cryptography: pip install cryptography\n"


def test_the_file_imports_nothing_but_cryptography_and_python():
    tree = ast.parse(SOURCE.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert others == {"cryptography"}


def test_the_command_gives_0_or_1_and_a_reason(bare, capsys, tmp_path):
    folder, _ = bare
    good, key = str(folder / "certificate.json"), str(folder / "signing.pub")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    wrong = [
        tmp_path,
        tmp_path / "none",
        tmp_path / "empty",
        tmp_path / "pipe",
        tmp_path / ("n" * 300),
        "a\0b",
        "\udcff",
        "",
    ]
    assert main([good, "--key", key]) == 0
    for one in map(str, wrong):
        for arguments in ([one, "--key", key], [good, "--key", one], [good, "--key", key, "--model", one]):
            assert main(arguments) == 1
            said = capsys.readouterr().out
            assert "✗" in said
            assert said.replace("✗", "").replace("✓", "").isascii()
            assert said.endswith(f"{NOT_PROVEN[-1]}\n")


def test_a_terminal_without_signs_gets_others(certificate, keys):
    lines = module.in_words(verify(certificate, keys.public_key), "cp1252")
    assert lines.isascii()
    assert lines.startswith("+ format")
    assert module.in_words(verify(b"", keys.public_key), "ascii").startswith("X format")


def test_what_is_not_proven_is_said(certificate):
    words = " ".join(NOT_PROVEN)
    for part in ("retrained", "audit", "copy", "elsewhere", "trained on", "complete", "head with other certificates"):
        assert part in words
    assert json.loads(certificate)["body"]["not_proven"] == list(NOT_PROVEN)
