"""``excise blanket``: the columns of a table that tell all there is to know about one of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from excise.cli.options import FILE, json_option, seed_option

if TYPE_CHECKING:
    from excise.statistics.selection import Tolerance
    from excise.statistics.tables import Table

LARGEST = 2**30  # gigabytes: more than there is


@click.command()
@click.argument("table", type=FILE)
@click.option("--target", required=True, metavar="COLUMN", help="The column to explain; it must be numeric.")
@click.option("--max-features", type=click.IntRange(min=1), metavar="N", help="Choose at most N columns.")
@seed_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Threads to use.  [default: all cores]")
@click.option(
    "--cluster",
    metavar="tcp://HOST:PORT",
    help="Share out the columns of a large table over a cluster of Dask: the address of its scheduler.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=100),
    metavar="ROWS",
    help="Search so many rows, drawn at random, and measure T on as many others.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    metavar="T",
    help="Take as many rows as it needs to know T to ± this, at 95 %.",
)
@click.option(
    "--max-gigabytes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="What a table, or a sample of it, may take.  [default: 4, and a hundred times its size]",
)
@json_option
@click.option("--plot", type=FILE, metavar="FILE", help="Draw a picture too (.png, .svg, .pdf).")
def blanket(
    table: Path,
    target: str,
    max_features: int | None,
    seed: int,
    jobs: int | None,
    cluster: str | None,
    sample: int | None,
    tolerance: float | None,
    max_gigabytes: float | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Find the Markov blanket of a column of TABLE, a CSV or Parquet file.

    The blanket is a small set of columns that tells all there is to know about the target: given them, the others add
    nothing. It is found by FOCI, which assumes no model and needs no tuning; T is the share of the target's variation
    (of what is still unknown, step by step) that a column explains, from 0 to 1.

    Text columns become 0/1 columns, one a level; rows with gaps are left out. Both are said.

    Of a table that is too large for memory or patience, --sample or --tolerance searches some of the rows and says how
    far T may be off. No more than these are then held.

    \b
    Examples:
      excise blanket patients.csv --target progression
      excise blanket patients.parquet --target progression --plot blanket.png
      excise blanket patients.csv --target progression --json | jq '.blanket[].column'
      excise blanket events.parquet --target clicked --tolerance 0.01
      excise blanket genes.parquet --target response --cluster tcp://10.0.0.1:8786
    """
    from excise._support.cluster import told_of_workers
    from excise.statistics.blanket import find_blanket
    from excise.statistics.selection import Tolerance

    if sample is not None and tolerance is not None:
        raise click.UsageError("--sample and --tolerance both say how many rows to take; give one of them.")
    wanted = sample if tolerance is None else Tolerance(tolerance)
    most = None if max_gigabytes is None else int(min(max_gigabytes, LARGEST) * 2**30)
    with told_of_workers(None if cluster is None else jobs, cluster):  # --jobs by itself is threads
        prepared = _prepared(table, target, wanted, seed, most)
        if max_features is not None:
            max_features = min(max_features, prepared.columns.shape[1])
        found = find_blanket(
            prepared,
            max_features=max_features,
            seed=seed,
            n_jobs=jobs,
            progress=sys.stderr.isatty() and not as_json,
            sample=wanted,
        )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        from rich.console import Console

        found.show(Console())
    if plot is not None:
        found.save_plot(plot)


def _prepared(path: Path, target: str, wanted: int | Tolerance | None, seed: int, most: int | None) -> Table:
    """The table, or as many of its rows as may be asked for."""
    import numpy as np

    from excise.statistics._sampling import rows_to_hold
    from excise.statistics.tables import prepare, read, read_rows

    if wanted is None:
        return prepare(read(path, max_bytes=most), target)
    rows, count = read_rows(path, rows_to_hold(wanted), np.random.default_rng(seed), max_bytes=most)
    return prepare(rows, target, of_rows=None if len(rows) == count else count)
