"""The register of requests: what there is, what became of it, and the lineage of the model."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise.cli.options import FILE, json_option, require_writable
from excise.cli.requests.options import days, ledger_options, request_argument

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.ledger.request import DeletionRequest

STATUSES = ("pending", "in_progress", "completed", "denied", "cancelled", "requires_retraining")
COLUMNS = (
    "subject_request_id",
    "status",
    "received_time",
    "due_date",
    "days_left",
    "completed_time",
    "identity_types",
    "attempts",
    "reason",
    "error",
    "answered_by",
    "version",
)
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
status_option = click.option("--status", type=click.Choice(STATUSES), help="Only these.")


@click.command("list")
@status_option
@click.option("--due-within", type=int, metavar="DAYS", help="Only what is to be answered within so many days.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option
@csv_option
@ledger_options()
def list_requests(
    status: str | None, due_within: int | None, limit: int, as_json: bool, as_csv: bool, ledger: Ledger
) -> None:
    """List requests, those that are due first at the top."""
    found = list(ledger.requests(status, due_within=due_within, limit=limit))
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in found], indent=2))
    elif as_csv:
        _write_csv(found, sys.stdout)
    else:
        _show(found, ledger.counts())


def _show(found: list[DeletionRequest], counts: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("request", "status", "received", "due", "", box=None, header_style="bold")
    for one in found:
        left = "" if one.days_left is None else days(one.days_left)
        style = "red" if one.is_late else ""
        name = one.subject_request_id
        table.add_row(name, one.status, one.received_time[:10], one.due_date[:10], left, style=style)
    Console().print(table)
    click.echo(", ".join(f"{number:,} {status}" for status, number in counts.items() if number) or "no requests")


@click.command()
@request_argument
@json_option
@ledger_options()
def show(subject_request_id: str, as_json: bool, ledger: Ledger) -> None:
    """Show a request and everything that happened to it."""
    found = ledger.request(subject_request_id)
    events = list(ledger.events(subject_request_id))
    if as_json:
        listed = [{**vars(one), "body": one.values} for one in events]
        click.echo(json.dumps({**found.as_dict(), "events": listed}, indent=2))
        return
    for name, value in found.as_dict().items():
        if value not in (None, [], ""):
            click.echo(f"{name.replace('_', ' '):20} {', '.join(value) if isinstance(value, list) else value}")
    click.echo("")
    for one in events:
        said = one.values.get("reason") or one.values.get("error") or ""
        click.echo(f"{one.time[:19]}  {one.kind:20} {one.author}{'  ' + said if said else ''}")


@click.command()
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Where to write it (.csv or .json).")
@status_option
@ledger_options()
def export(out: Path, status: str | None, ledger: Ledger) -> None:
    """Write the register of all requests to a file: what Art. 5(2) GDPR asks you to be able to show."""
    from excise._support.files import whole_file

    ending = require_writable(out, "--out", (".csv", ".json"))
    with whole_file(out) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        written = _write_csv(ledger.requests(status), file) if ending == ".csv" else _write_json(ledger, status, file)
    click.echo(f"wrote {written:,} requests to {out}")


def _write_csv(found: Iterable[DeletionRequest], file: Any) -> int:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    count = 0
    for one in found:
        row = one.as_dict()
        writer.writerow({name: _cell(row[name]) for name in COLUMNS})
        count += 1
    return count


def _cell(value: Any) -> Any:
    """What a spreadsheet shows as it is: it takes text that begins with one of these for a formula."""
    text = " ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _write_json(ledger: Ledger, status: str | None, file: Any) -> int:
    count = 0
    file.write("[")
    for one in ledger.requests(status):
        file.write(",\n" if count else "\n")
        file.write(json.dumps(one.as_dict()))
        count += 1
    file.write("\n]\n")
    return count


@click.command()
@json_option
@ledger_options()
def log(as_json: bool, ledger: Ledger) -> None:
    """Draw how the model came to be what it is: every version, its parent and what was done."""
    from excise.ledger.lineage import as_tree

    found = ledger.lineage()
    if as_json:
        click.echo(json.dumps([vars(one) for one in found], indent=2))
    else:
        click.echo(as_tree(found) or "no model version yet; excise requests process makes the first")
