"""What is handed out: certificates, and whether the ledger is whole."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from excise.cli.options import FILE, json_option, require_writable
from excise.cli.requests.options import ledger_options, request_argument

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger


@click.command()
@request_argument
@click.option("--out", type=FILE, metavar="FILE", help="Write it to a file: .json, or .html for a page.")
@ledger_options()
def certificate(subject_request_id: str, out: Path | None, ledger: Ledger) -> None:
    """Give out the signed certificate of a completed request."""
    from excise._support.files import write_whole

    ending = require_writable(out, "--out", (".json", ".html"))
    text = ledger.certificate(subject_request_id)
    if out is None:
        click.echo(text, nl=False)
        return
    if ending == ".html":
        from excise.ledger.certificate_page import write_certificate_page

        write_certificate_page(text, out)
    else:
        write_whole(out, text)
    click.echo(f"wrote {out}")


@click.command()
@json_option
@ledger_options()
def verify(as_json: bool, ledger: Ledger) -> None:
    """Check that nothing in the ledger, its model files and certificates was altered, removed or inserted.

    It fails, too, while something that was computed with deleted samples is there past its date.
    """
    from excise.ledger.verification import verify_ledger

    found = verify_ledger(ledger)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        for problem in found.problems:
            click.echo(f"✗ {problem}")
        click.echo(
            f"{'whole' if found.is_whole else 'NOT whole'}: {found.events:,} events, {found.versions:,} model "
            f"versions, {found.certificates:,} certificates"
        )
    sys.exit(0 if found.is_whole else 1)
