"""Options that all commands on a ledger have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise.cli.options import FILE

if TYPE_CHECKING:  # it loads SQLAlchemy
    from excise.ledger.ledger import Ledger


def ledger_options(
    *, create: bool = False, later: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the ledger that its options name; with ``create`` a new one where there is none.

    With ``later`` it gets a function that opens it, to be called when all else is known to be right.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--ledger",
            "url",
            envvar="EXCISE_LEDGER",
            required=True,
            metavar="URL",
            help="A file, sqlite:///requests.db or postgresql://user@host/name; EXCISE_LEDGER says it too.",
        )
        @click.option(
            "--folder",
            type=FILE,
            envvar="EXCISE_LEDGER_FOLDER",
            metavar="DIR",
            help="Where model versions and keys are.  [default: beside an SQLite file]",
        )
        @click.option(
            "--author", envvar="EXCISE_AUTHOR", metavar="NAME", help="Who does this, for the record.  [default: you]"
        )
        @functools.wraps(command)
        def opened(*arguments: Any, url: str, folder: Path | None, author: str | None, **others: Any) -> None:
            from excise.ledger.ledger import Ledger

            open_ledger = functools.partial(Ledger, url, folder=folder, create=create, author=author)
            command(*arguments, ledger=open_ledger if later else open_ledger(), **others)

        return opened

    return decorate


request_argument = click.argument("subject_request_id", metavar="REQUEST")


def echo_request(ledger: Ledger, subject_request_id: str) -> None:
    """Say in a line how a request stands."""
    found = ledger.request(subject_request_id)
    left = "" if found.days_left is None else f", due {found.due_date[:10]} ({days(found.days_left)})"
    reason = f": {found.reason}" if found.reason else ""
    click.echo(f"{found.subject_request_id}  {found.status}{left}{reason}")


def days(left: int) -> str:
    """How long there is.

    >>> days(1), days(-3)
    ('1 day left', '3 days late')
    """
    unit = "day" if abs(left) == 1 else "days"
    return f"{left} {unit} left" if left >= 0 else f"{-left} {unit} late"
