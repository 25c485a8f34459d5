"""Requests come in, and are withdrawn, denied or taken up again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import click

from excise.cli.options import json_option
from excise.cli.requests.options import echo_request, ledger_options, request_argument

if TYPE_CHECKING:
    from excise.ledger.identities import Submission
    from excise.ledger.ledger import Ledger
    from excise.task.task import Task

LARGEST = 2**30  # bytes of a file of requests


@click.command()
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@click.option("--samples", metavar="SPEC", help="Instead, samples by a rule: ids:3,5,9, class:3; with --task.")
@click.option("--task", "address", metavar="MODULE:FACTORY", help="For --samples: makes the excise.Task.")
@json_option
@ledger_options(create=True, later=True)
def submit(
    file: BinaryIO, samples: str | None, address: str | None, as_json: bool, ledger: Callable[[], Ledger]
) -> None:
    """Take in requests from FILE, or from standard input: JSON as OpenDSR has it, one, a list, or one a line.

    Who asks is named in the file alone, never on the command line, which others on this machine can see. On a terminal
    without FILE you are asked for it.

    \b
    Example, with a key of the task's:
      {"subject_request_type": "erasure",
       "subject_identities": [{"identity_type": "key", "identity_value": "customer-17"}]}
      excise requests submit request.json --ledger requests.db
    """
    if samples is not None or address is not None:
        from excise.ledger.sample_requests import submit_samples  # which loads torch

        task = _task_of(samples, address)
        opened = ledger()
        taken = [submit_samples(opened, task, samples or "")]
    else:
        asked = _asked() if _is_terminal(file) else _read(file)
        opened = ledger()
        taken = opened.submit_all(asked)
    if as_json:
        click.echo(json.dumps([one.as_dict() for one in taken], indent=2))
        return
    for one in taken[:20]:
        echo_request(opened, one.subject_request_id)
    if len(taken) > 20:
        click.echo(f"and {len(taken) - 20:,} more")


def _task_of(samples: str | None, address: str | None) -> Task:
    from excise.errors import InputError
    from excise.task.loading import load_task

    if samples is None or address is None:
        raise InputError("--samples and --task go together: the task has the training set that the samples are in.")
    return load_task(address)


def _is_terminal(file: BinaryIO) -> bool:
    return getattr(file, "name", "") == "<stdin>" and sys.stdin.isatty()


def _read(file: BinaryIO) -> list[Submission]:
    from excise.errors import InputError
    from excise.ledger.identities import parse_submissions

    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InputError("FILE is larger than 1 GiB; submit the requests in parts.")
    try:
        return parse_submissions(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("FILE is not text in UTF-8; requests are JSON.") from None


def _asked() -> list[Submission]:
    import uuid

    from excise.ledger.identities import Identity, Submission

    kind = click.prompt("identity type", default="key")
    return [Submission(str(uuid.uuid4()), (Identity(kind, click.prompt("identity")),))]


@click.command()
@request_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why; don't name the person.")
@ledger_options()
def cancel(subject_request_id: str, reason: str, ledger: Ledger) -> None:
    """Withdraw a request."""
    ledger.cancel(subject_request_id, reason)
    echo_request(ledger, subject_request_id)


@click.command()
@request_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why, in writing; don't name the person.")
@ledger_options()
def deny(subject_request_id: str, reason: str, ledger: Ledger) -> None:
    """Refuse a request."""
    ledger.deny(subject_request_id, reason)
    echo_request(ledger, subject_request_id)


@click.command()
@request_argument
@ledger_options()
def reopen(subject_request_id: str, ledger: Ledger) -> None:
    """Let a request that stopped, or failed too often, be tried again."""
    ledger.reopen(subject_request_id)
    echo_request(ledger, subject_request_id)
