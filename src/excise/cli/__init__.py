"""The command line: parse, call, print.

Each command imports what it needs when it runs, so that ``excise --help`` loads neither torch nor rich.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Any

import click

import excise
from excise._support.launchers import is_first_started
from excise._support.visible import visible
from excise.cli import (
    audit,
    compare,
    demo,
    forget,
    plan,
    population,
    reproduce,
    requests,
    slices,
    statistics,
    unfit,
    verify,
)
from excise.cli.launched import refuse_several
from excise.errors import ExciseError

COMMANDS = (
    statistics.blanket,
    plan.plan,
    forget.forget,
    unfit.unfit,
    slices.slices,
    audit.audit,
    requests.requests,
    verify.verify,
    compare.compare,
    population.population,
    demo.demo,
    reproduce.reproduce,
)
SHARED = ("forget", "audit")
"""Those that several processes can carry out together."""
INTERRUPTED = 130  # 128 and the number of the signal


class Commands(click.Group):
    """The commands; one that is interrupted ends as the shell expects of it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nexcise: stopped; files are as they were, or complete", err=True)
            sys.exit(INTERRUPTED)
        except EOFError as error:  # which click would take for an interrupt, and it is a mistake of ours
            raise RuntimeError("a file ended where more was expected") from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; not every one can be carried out by several processes."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in SHARED:
            refuse_several(name)
        return name, command, rest


@click.group(
    cls=Commands, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(excise.__version__, prog_name="excise")
def cli() -> None:
    """Delete training samples from a trained model, and find what a column of a table depends on."""


def _say(message: Warning | str, *_: Any) -> None:
    if is_first_started():
        click.echo(f"excise: warning: {visible(str(message))}", err=True)


def main() -> None:
    """Run the command line; what goes wrong on purpose is one line on standard error, not a traceback."""
    warnings.showwarning = _say  # type: ignore[assignment]  # one line, without the place in the code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no bars still gets the numbers
    try:
        cli(prog_name="excise")
    except ExciseError as error:
        click.echo(f"excise: {visible(str(error))}", err=True)
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        click.echo(
            "excise: out of memory; files are as they were, or complete. Run it where there is more, or on fewer or "
            "smaller samples.",
            err=True,
        )
        sys.exit(1)


def _is_lack_of_memory(error: Exception) -> bool:
    """Torch says so in words of its own, on the CPU in a plain RuntimeError."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")
    return isinstance(error, MemoryError) or any(part in str(error) for part in words)
