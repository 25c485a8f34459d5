"""``excise population``: methods on many models, against as many retrained ones."""

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
    seed_option,
    task_option,
    workers_options,
)


@click.command()
@task_option
@request_option
@click.option("--methods", metavar="A,B,...", default="step", show_default=True, help="Which to run.")
@click.option(
    "--models",
    type=click.IntRange(min=6),
    default=40,
    show_default=True,
    help="How many originals, and how many retrained.",
)
@seed_option
@click.option("--cache", type=FILE, metavar="DIR", help="Where models and outcomes are kept.")
@workers_options
@click.option("--out", type=FILE, metavar="FILE", help="Write everything as JSON.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def population(
    address: str,
    spec: str,
    methods: str,
    models: int,
    seed: int,
    cache: Path | None,
    out: Path | None,
    markdown: bool,
) -> None:
    """Attack methods of unlearning with populations of models.

    Every method runs on many originals, and each forgotten sample's answers are compared with those of as many
    retrained models. It takes as many trainings as there are models, twice. A run that was stopped goes on where it
    was, and several at once with the same options share the work.

    \b
    Example:
      excise population --task my_project:task --forget random:1% --methods step,fine-tune --models 40
    """
    from excise._support.files import write_json
    from excise.errors import InputError
    from excise.evidence.population import population as run_population
    from excise.evidence.population import table
    from excise.task.loading import load_task
    from excise.training.retraining import KEPT_IN

    require_writable(out, "--out", (".json",))
    names = listed(methods)
    if not names:
        raise InputError(f"--methods {methods!r} has no method; name some, such as step,fine-tune.")
    found = run_population(
        load_task(address),
        spec,
        names,
        models=models,
        seed=seed,
        cache=cache or KEPT_IN,
        progress=sys.stderr.isatty(),
    )
    print_table(found, table, markdown=markdown)
    if out is not None:
        write_json(out, found.as_dict())
        click.echo(f"wrote {out}", err=markdown)
