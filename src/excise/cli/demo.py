"""``excise demo``: a first deletion, which needs no data and no model of the user's."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    metavar="DIR",
    help="Where to write excise-report.html and .json.  [default: here]",
)
def demo(out_dir: Path) -> None:
    """Make a network forget digits with wrong labels, and prove it against retrained ones; needs no download."""
    from rich.console import Console

    from excise.demo import run

    run(Console(), out_dir)
