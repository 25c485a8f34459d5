"""``excise compare``: methods of unlearning side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from excise.cli.options import (
    FILE,
    listed,
    print_table,
    request_option,
    require_writable,
    task_option,
    workers_options,
)


@click.command()
@task_option
@request_option
@click.option("--methods", metavar="A,B,...", help="Which to compare.  [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions.")
@click.option("--retrainings", type=click.IntRange(min=2), default=3, show_default=True, help="Of every request.")
@click.option("--no-tuning", is_flag=True, help="Take every method's default settings.")
@click.option("--cache", type=FILE, metavar="DIR", help="Where retrained models are kept.")
@workers_options
@click.option("--out", type=FILE, metavar="FILE", help="Write everything as JSON.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw gap against cost (.png, .svg, .pdf).")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def compare(
    address: str,
    spec: str,
    methods: str | None,
    seeds: int,
    retrainings: int,
    no_tuning: bool,
    cache: Path | None,
    out: Path | None,
    plot: Path | None,
    markdown: bool,
) -> None:
    """Compare methods of unlearning with retraining.

    All of them run on the same request, tuned alike on another one.

    \b
    Example:
      excise compare --task my_project:task --forget random:1% --out compare.json --plot compare.png
    """
    from excise._support.files import write_json
    from excise.comparison import table as compare_table
    from excise.comparison.comparing import compare as compare_methods
    from excise.task.loading import load_task
    from excise.training.retraining import KEPT_IN

    require_writable(out, "--out", (".json",))
    if require_writable(plot, "--plot", (".png", ".svg", ".pdf")):
        compare_table.new_figure()  # what is missing is said before the work
    found = compare_methods(
        load_task(address),
        spec,
        methods=None if methods is None else listed(methods),
        seeds=seeds,
        retrainings=retrainings,
        tune=not no_tuning,
        cache=cache or KEPT_IN,
        progress=sys.stderr.isatty(),
    )
    print_table(found, compare_table, markdown=markdown)
    if out is not None:
        write_json(out, found.as_dict())
    if plot is not None:
        compare_table.save_plot(found, plot)
    for file in (out, plot):
        if file is not None:
            click.echo(f"wrote {file}", err=markdown)
