"""``excise plan``: what forgetting and its proof will cost."""

from __future__ import annotations

import json
import sys

import click

from excise.cli.options import json_option
from excise.errors import InputError


@click.command()
@click.option("--task", "address", metavar="MODULE:FACTORY", help="A function that makes the excise.Task.")
@click.option("--table", metavar="ROWSxCOLUMNS", help="Instead of it, a table whose columns are searched: 1e6x50.")
@click.option(
    "--retrainings", type=click.IntRange(min=1), default=3, show_default=True, help="Models that an audit retrains."
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=4, show_default=True, help="Up to so many share the work out."
)
@click.option(
    "--request", type=click.IntRange(min=1), default=1, show_default=True, help="Samples that a request names."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="How long measuring may take, about.",
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@json_option
def plan(
    address: str | None,
    table: str | None,
    retrainings: int,
    workers: int,
    request: int,
    seconds: float,
    markdown: bool,
    as_json: bool,
) -> None:
    """Say what forgetting will cost, before anything is done.

    A few batches of every work are measured on this machine: seconds, memory, bytes kept, for the default method, step
    and drift, the certificate, and an audit with retrainings on several workers. Nothing is written.

    \b
    Examples:
      excise plan --task my_project:task --retrainings 3 --workers 8
      excise plan --table 1e8x1e3
    """
    if (address is None) == (table is None):
        raise InputError("say what to plan for by one of --task and --table.")
    from excise.planning import table as tables

    if table is not None:
        from excise.planning.searches import plan_search, size_of_table

        searches = plan_search(*size_of_table(table))
        if as_json:
            click.echo(json.dumps([one.as_dict() for one in searches], indent=2))
        elif markdown:
            click.echo(tables.search_markdown(searches))
        else:
            from rich.console import Console

            tables.show_search(searches, Console())
        return
    from excise.planning import plan as plan_works
    from excise.task.loading import load_task

    found = plan_works(
        load_task(str(address)),
        retrainings=retrainings,
        workers=workers,
        request=request,
        seconds=seconds,
        progress=sys.stderr.isatty() and not as_json,
    )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    from excise.cli.options import print_table

    print_table(found, tables, markdown=markdown)
