"""Requests are looked at before, and carried out."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise.cli.methods import chosen_guard, chosen_method, guard_option, method_option, set_option
from excise.cli.options import FILE, json_option, seed_option, task_option
from excise.cli.requests.options import days, ledger_options, request_argument
from excise.errors import ExciseError, InputError

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.ledger.processing import Processed

STOPPED = 3  # the exit code where a request needs a retraining, as of NothingForgotten
finder_option = click.option(
    "--find",
    "finders",
    multiple=True,
    metavar="TYPE=WHERE",
    help="Where subjects of a type of identity are found: a column of the data set, or module:function.",
)


def _finders(words: tuple[str, ...]) -> dict[str, Any]:
    """What ``--find`` says."""
    found: dict[str, Any] = {}
    for word in words:
        kind, equals, where = (part.strip() for part in word.partition("="))
        if not equals or not kind or not where:
            raise InputError(f"--find must be given as TYPE=WHERE, not {word!r:.80}; such as --find email=mail.")
        found[kind] = _function(where) if ":" in where else where
    return found


def _function(address: str) -> Any:
    from excise.task.loading import made_by

    def find(_: Any) -> Any:
        return made_by(address, "finder")

    return find


@click.command()
@request_argument
@task_option
@finder_option
@json_option
@ledger_options()
def preview(subject_request_id: str, address: str, finders: tuple[str, ...], as_json: bool, ledger: Ledger) -> None:
    """Say what a request will do, before anything happens: which samples, of which classes, at what cost."""
    from excise.ledger.previewing import preview_request
    from excise.task.loading import load_task

    found = preview_request(ledger, load_task(address), subject_request_id, finders=_finders(finders))
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.summary())


@click.command()
@task_option
@method_option
@set_option
@guard_option
@click.option("--points", type=float, default=2.0, show_default=True, help="Points of accuracy all requests may cost.")
@click.option("--retrainings", type=click.IntRange(min=0), metavar="N", help="Audit against N retrained models.")
@click.option("--must-pass", is_flag=True, help="Stop what the audit does not call forgotten.")
@click.option("--epsilon", type=float, metavar="ε", help="Of the noise of every batch, with --delta.")
@click.option("--delta", type=float, metavar="δ")
@click.option("--budget", nargs=2, type=float, metavar="ε δ", help="What all batches may spend until a retraining.")
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Requests a model version.")
@click.option("--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Go on, and look again so often.")
@finder_option
@seed_option
@json_option
@ledger_options()
def process(
    address: str,
    method: str,
    assignments: tuple[str, ...],
    guard: str | None,
    points: float,
    retrainings: int | None,
    must_pass: bool,
    epsilon: float | None,
    delta: float | None,
    budget: tuple[float, float] | None,
    batch: int,
    watch: float | None,
    finders: tuple[str, ...],
    seed: int,
    as_json: bool,
    ledger: Ledger,
) -> None:
    """Carry out all requests that wait, those that are due first in front.

    It can be stopped or killed at any time: the next run goes on, and nothing is lost or done twice. Several may run
    at once. The exit code is 3 where a request needs a retraining, and 1 where one failed: it will be tried
    again, unless it failed too often, which is said.

    \b
    Example:
      excise requests process --task my_project:task --ledger requests.db --retrainings 3
    """
    from excise.ledger.policy import Policy
    from excise.ledger.processing import Processed, Worker
    from excise.task.loading import load_task

    policy = Policy(
        method=chosen_method(method, assignments),
        guard=chosen_guard(guard),
        points=points,
        retrainings=retrainings,
        must_pass=must_pass,
        epsilon=epsilon,
        delta=delta,
        total=budget,
        batch=batch,
        seed=seed,
    )
    worker = Worker(
        ledger, load_task(address), policy, finders=_finders(finders), tell=lambda text: click.echo(text, err=True)
    )
    total, is_going = Processed(), False
    while True:
        try:
            found = worker.run()
        except ExciseError as error:
            if watch is None or not is_going:
                raise
            click.echo(f"{error} Trying again.", err=True)  # such as a server that does not answer for a while
            time.sleep(watch)
            continue
        total, is_going = total + found, True
        if len(found) and not as_json:
            _say(found, ledger)
        if watch is None:
            break
        time.sleep(watch)
    given_up = _say_given_up(ledger, policy.attempts)
    if as_json:
        click.echo(json.dumps(asdict(total), indent=2))
    elif not len(total) and not given_up:
        click.echo("nothing to do")
    sys.exit(STOPPED if total.requires_retraining else 1 if total.failed or given_up else 0)


def _say_given_up(ledger: Ledger, attempts: int) -> bool:
    """Name the requests that failed so often that they are not tried again by themselves, if there are any."""
    names = [one.subject_request_id for one in ledger.requests("pending") if one.attempts >= attempts]
    if names:
        more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
        click.echo(
            f"failed {attempts} times, and not tried again until the cause is mended and you reopen them: "
            f"{', '.join(names[:20])}{more}",
            err=True,
        )
    return bool(names)


def _say(found: Processed, ledger: Ledger) -> None:
    for status in ("completed", "denied", "requires_retraining", "failed"):
        for name in getattr(found, status):
            click.echo(f"{name}  {status}")
    click.echo(f"model version {(found.version or '')[:12]}")
    late = next(ledger.requests("pending", limit=1), None)
    if late is not None and late.days_left is not None:
        click.echo(
            f"{ledger.counts()['pending']:,} pending, the first is due {late.due_date[:10]} ({days(late.days_left)})"
        )


@click.command()
@task_option
@click.option("--model", required=True, type=FILE, metavar="FILE", help="Weights of the model that was retrained.")
@finder_option
@json_option
@ledger_options()
def retrained(address: str, model: Path, finders: tuple[str, ...], as_json: bool, ledger: Ledger) -> None:
    """Register a model that was retrained without the samples of all requests that need it; they are completed.

    That it was trained without them is the operator's word, and the certificates say so. The budget begins anew.
    """
    from excise.ledger.retraining import register_retrained
    from excise.task.loading import load_task

    found = register_retrained(ledger, load_task(address), model, finders=_finders(finders))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _say(found, ledger)
