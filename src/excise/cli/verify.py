"""``excise verify``: whether a certificate of deletion is what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from excise.cli.options import FILE, json_option, require_writable
from excise.errors import InputError, MissingExtraError


@click.command()
@click.argument("certificate", type=FILE, metavar="CERT", required=False)
@click.option("--key", type=FILE, metavar="PUB", help="Public key of the ledger, signing.pub.")
@click.option("--model", type=FILE, metavar="FILE", help="The model in use, to see whether it is the certified one.")
@json_option
@click.option(
    "--write-verifier",
    type=FILE,
    metavar="FILE",
    help="Write verify.py, which does the same without excise, and nothing else.",
)
def verify(
    certificate: Path | None, key: Path | None, model: Path | None, as_json: bool, write_verifier: Path | None
) -> None:
    """Check a certificate of deletion, and say what it does not prove.

    Whoever got a certificate can check that nothing in it was altered since the operator signed it, and that the
    deleted samples are not in the set of retained ones that it commits to. It needs no ledger and no network. The
    exit code is 1 if a check fails.

    \b
    Examples:
      excise verify certificate.json --key signing.pub --model model.safetensors
      excise verify --write-verifier verify.py
    """
    if write_verifier is not None:
        if certificate is not None or key is not None or model is not None:
            raise InputError("--write-verifier goes alone: it writes a file, and verifies nothing.")
        _write_verifier(write_verifier)
        return
    if certificate is None or key is None:
        raise click.UsageError("Name a certificate, and the public key of its ledger by --key.")
    from excise.ledger import verify as verifier

    try:
        findings = verifier.verify_files(certificate, key, model)
    except ImportError:
        raise MissingExtraError("Verifying needs cryptography; install it with: pip install 'excise[ledger]'") from None
    verified = all(one.holds for one in findings)
    if as_json:
        listed = [{"check": one.check, "holds": one.holds, "reason": one.reason} for one in findings]
        found = {"verified": verified, "findings": listed, "not_proven": list(verifier.NOT_PROVEN)}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(verifier.in_words(findings, sys.stdout.encoding))
    if not verified:
        sys.exit(1)


def _write_verifier(file: Path) -> None:
    from importlib.resources import files

    from excise._support.files import write_whole

    require_writable(file, "--write-verifier", (".py",))
    write_whole(file, (files("excise.ledger") / "verify.py").read_bytes())
    click.echo(f"wrote {file}; run it by: python {file} CERT --key PUB")
