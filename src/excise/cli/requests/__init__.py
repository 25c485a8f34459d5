"""``excise requests``: deletion requests from their receipt to a signed certificate."""

from __future__ import annotations

import click

from excise.cli.requests import answers, files, intake, register, work

COMMANDS = (
    intake.submit,
    work.preview,
    register.list_requests,
    register.show,
    work.process,
    answers.verify,
    answers.certificate,
    register.export,
    register.log,
    intake.cancel,
    intake.deny,
    intake.reopen,
    work.retrained,
    files.checkout,
    files.leftovers,
    files.purge,
    files.retention,
    files.register_file,
    files.upgrade,
)


@click.group(commands=COMMANDS)
def requests() -> None:
    """Deletion requests that last: a ledger, its workers, and signed certificates.

    The ledger is an SQLite file, or a PostgreSQL database by its URL. Name it by --ledger or EXCISE_LEDGER.
    """
