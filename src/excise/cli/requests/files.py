"""Files of a ledger: model versions, what is left over of deleted samples, and the database itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from excise.cli.options import FILE, json_option, require_writable, task_option
from excise.cli.requests.options import ledger_options

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger

KINDS = ("retrained model", "curvature", "gradients", "activations", "optimizer state", "report", "other")


@click.command()
@click.argument("version")
@task_option
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Where to write the weights.")
@ledger_options()
def checkout(version: str, address: str, out: Path, ledger: Ledger) -> None:
    """Write the weights of a VERSION, named by its hash or by "head"."""
    from excise.ledger.lineage import check_out
    from excise.task.loading import load_task

    require_writable(out, "--out", (".safetensors", ".pt", ".pth", ".bin"))
    check_out(ledger, load_task(address), version, out)
    click.echo(f"wrote {out}")


@click.command()
@click.option("--scan", type=FILE, multiple=True, metavar="DIR", help="Look for copies that nobody registered here.")
@click.option("--task", "address", metavar="MODULE:FACTORY", help="With it retrained models and reports are found too.")
@json_option
@ledger_options()
def leftovers(scan: tuple[Path, ...], address: str | None, as_json: bool, ledger: Ledger) -> None:
    """List what was computed with samples that are deleted since, and by when it must be gone."""
    from excise.ledger.purging import leftovers_of
    from excise.task.loading import load_task

    task = None if address is None else load_task(address)
    found = leftovers_of(ledger, folders=scan, task=task)
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in found], indent=2))
        return
    for one in found:
        late = "  PAST ITS DATE" if one.is_late else ""
        click.echo(f"{one.kind:16} {one.path}  to be gone by {one.purge_by[:10]}{late}")
    if not found:
        click.echo("nothing is left over")


@click.command()
@click.option("--now", "at_once", is_flag=True, help="Also what may still be kept for a while.")
@json_option
@ledger_options()
def purge(at_once: bool, as_json: bool, ledger: Ledger) -> None:
    """Remove what is past its date: old model versions and registered files; the head version always stays."""
    from excise.ledger.purging import purge_leftovers

    removed = purge_leftovers(ledger, at_once=at_once)
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in removed], indent=2))
        return
    for one in removed:
        click.echo(f"removed {one.path}")
    if not removed:
        click.echo("nothing to remove")


@click.command("register")
@click.argument("file", type=FILE)
@click.option("--kind", type=click.Choice(KINDS), required=True, help="What it is.")
@ledger_options()
def register_file(file: Path, kind: str, ledger: Ledger) -> None:
    """Register a FILE that was computed with the training samples, so that it is purged after a deletion."""
    from excise.ledger.purging import register

    register(ledger, file, kind)
    click.echo(f"registered {file}")


@click.command()
@click.option("--days", type=click.IntRange(min=0), required=True, help="After a deletion.")
@ledger_options()
def retention(days: int, ledger: Ledger) -> None:
    """Say for how long leftovers of deleted samples may be kept; 30 days if nothing is said."""
    from excise.ledger.purging import set_retention

    set_retention(ledger, days)
    click.echo(f"leftovers are to be gone {days} days after a deletion")


@click.command()
@click.option("--ledger", "url", envvar="EXCISE_LEDGER", required=True, metavar="URL", help="The ledger.")
@click.option("--folder", type=FILE, envvar="EXCISE_LEDGER_FOLDER", metavar="DIR", help="Where its keys are.")
@json_option
def upgrade(url: str, folder: Path | None, as_json: bool) -> None:
    """Bring the tables of a ledger of an earlier version up to date; make a backup first."""
    from excise.ledger.beginning import upgrade_ledger

    before, after = upgrade_ledger(url, folder=folder)
    found = {"before": before, "after": after}
    click.echo(json.dumps(found) if as_json else f"tables {before} → {after}")
