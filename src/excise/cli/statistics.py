"""``excise blanket``: the columns of a table that tell all there is to know about one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from excise.cli.options import FILE, json_option, seed_option

LARGEST = 2**30  # gigabytes: more than there is


@click.command()
@click.argument("table", type=FILE)
@click.option("--target", required=True, metavar="COLUMN", help="The column to explain; it must be numeric.")
@click.option("--max-features", type=click.IntRange(min=1), metavar="N", help="Choose at most N columns.")
@seed_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Threads to use.  [default: all cores]")
@click.option(
    "--max-gigabytes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="What a compressed table may unpack to.  [default: 4, and a hundred times its size]",
)
@json_option
@click.option("--plot", type=FILE, metavar="FILE", help="Draw a picture too (.png, .svg, .pdf).")
def blanket(
    table: Path,
    target: str,
    max_features: int | None,
    seed: int,
    jobs: int | None,
    max_gigabytes: float | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Find the Markov blanket of a column of TABLE, a CSV or Parquet file.

    The blanket is a small set of columns that tells all there is to know about the target: given them, the others add
    nothing. It is found by FOCI, which assumes no model and needs no tuning; T is the share of the target's variation
    (of what is still unknown, step by step) that a column explains, from 0 to 1.

    Text columns become 0/1 columns, one a level; rows with gaps are left out. Both are said.

    \b
    Examples:
      excise blanket patients.csv --target progression
      excise blanket patients.parquet --target progression --plot blanket.png
      excise blanket patients.csv --target progression --json | jq '.blanket[].column'
    """
    from excise.statistics.blanket import find_blanket
    from excise.statistics.tables import prepare, read

    most = None if max_gigabytes is None else int(min(max_gigabytes, LARGEST) * 2**30)
    prepared = prepare(read(table, max_bytes=most), target)
    if max_features is not None:
        max_features = min(max_features, prepared.columns.shape[1])
    found = find_blanket(
        prepared, max_features=max_features, seed=seed, n_jobs=jobs, progress=sys.stderr.isatty() and not as_json
    )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        from rich.console import Console

        found.show(Console())
    if plot is not None:
        found.save_plot(plot)
