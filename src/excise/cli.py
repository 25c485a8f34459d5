"""The command line: parse, call, print."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import click
from rich.console import Console

import excise
from excise.errors import ExciseError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(excise.__version__, prog_name="excise")
def cli() -> None:
    """Delete training samples from a trained model, and find what a column of a table depends on."""


@cli.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="COLUMN", help="The column to explain; it must be numeric.")
@click.option("--max-features", type=click.IntRange(min=1), metavar="N", help="Choose at most N columns.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For ties between neighbours.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Threads to use.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a picture too (.png, .svg, .pdf).")
def blanket(
    table: Path,
    target: str,
    max_features: int | None,
    seed: int,
    jobs: int | None,
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
    from excise.blanket import find_blanket
    from excise.tables import prepare, read

    prepared = prepare(read(table), target)
    if max_features is not None:
        max_features = min(max_features, prepared.columns.shape[1])
    found = find_blanket(
        prepared, max_features=max_features, seed=seed, n_jobs=jobs, progress=sys.stderr.isatty() and not as_json
    )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        found.show(Console())
    if plot is not None:
        found.save_plot(plot)


@cli.command()
def demo() -> None:
    """Find what tells the progression of diabetes, in a real table that needs no download."""
    from excise.demo import run

    run(Console())


def main() -> None:
    """Run the command line; what goes wrong on purpose is one line on standard error, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no bars still gets the numbers
    try:
        cli(prog_name="excise")
    except ExciseError as error:
        click.echo(f"excise: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
