"""``excise audit``: measure how well a model forgot."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise._support.reading import reason, require_regular_file
from excise.cli.launched import say, shared
from excise.cli.options import (
    FILE,
    PageOptions,
    proof_options,
    require_file,
    require_writable,
    task_option,
    workers_options,
)
from excise.cli.proof import prove
from excise.errors import InputError

if TYPE_CHECKING:  # these load torch
    from torch import nn

    from excise.task.task import Task
    from excise.unlearning.forgotten import Forgotten


@click.command()
@task_option
@click.option(
    "--forget",
    "spec",
    metavar="SPEC",
    help="What was forgotten: ids:3,5,9, ids:FILE or class:3.  [default: what the record says]",
)
@click.option("--original", type=FILE, metavar="FILE", help="Weights before.  [default: the task's model]")
@click.option("--unlearned", required=True, type=FILE, metavar="FILE", help="Weights after.")
@click.option(
    "--record",
    type=FILE,
    metavar="FILE",
    help="The record that excise forget --report FILE.json wrote.  [default: the one in the weights]",
)
@click.option(
    "--retrainings", type=click.IntRange(min=0), default=0, show_default=True, help="Models to retrain for it."
)
@click.option("--report", type=FILE, metavar="FILE", help="Write a page for people (.html).")
@workers_options
@proof_options
@shared
def audit(
    address: str,
    spec: str | None,
    original: Path | None,
    unlearned: Path,
    record: Path | None,
    retrainings: int,
    report: Path | None,
    show_samples: bool,
    page_options: PageOptions,
    seed: int,
    as_json: bool,
) -> None:
    """Measure how well a model forgot samples, however that was done.

    Weights that excise forget wrote as .safetensors carry their record: what was forgotten, by which method and with
    which settings, scores, certificate and seconds. The report then says so.

    \b
    Examples:
      excise audit --task my_project:task --unlearned out.safetensors --retrainings 3 --report page.html
      excise audit --task my_project:task --forget ids:17,4242 --unlearned other.pt --retrainings 3
    """
    from excise import processes
    from excise.cli.records import circumstances, file_hashes
    from excise.task.loading import load_task
    from excise.task.requests import parse_request
    from excise.task.weights import load_weights

    require_file(record, "--record", (".json",))
    if processes.is_first():
        require_writable(report, "--report", (".html",))
        page_options.key()  # a file that holds none is said before the work
    task = load_task(address)
    also = page_options.further_sets()
    if original is not None:
        load_weights(task.model, original)
    model = copy.deepcopy(task.model)
    inside = load_weights(model, unlearned)
    done = _outcome(task, model, inside, str(unlearned))
    if record is not None:
        told = _outcome(task, model, _read(record), str(record))
        if done is not None and told is not None and (done.ids, done.forgotten) != (told.ids, told.forgotten):
            raise InputError(f"{record} is the record of another request than the one in {unlearned}; leave it out.")
        done = told
    if done is None and spec is None:
        raise InputError(f"{unlearned} has no record of what was forgotten; name that by --forget, or pass --record.")
    ids = None if spec is None else parse_request(spec, task, seed=seed).ids
    hashes = file_hashes(before=original, after=unlearned)
    found = prove(
        task,
        done or model,
        ids,
        retrainings,
        report,
        options=page_options,
        also=also,
        hashes=hashes,
        show_samples=show_samples,
        seed=seed,
        quiet=as_json,
    )
    if as_json:
        settings = {} if done is None else done.settings
        everything = {**found.as_dict(), "settings": settings, **circumstances(page_options, hashes)}
        say(json.dumps(everything, indent=2))  # in ASCII, which no terminal obeys
        return
    from rich.console import Console

    from excise.evidence.text import show

    if processes.is_first():
        show(found, Console())
    if report is not None:
        say(f"wrote {report}")


def _read(record: Path) -> Any:
    require_regular_file(record)
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{record}: can't be read as a record ({reason(error)}).") from None


def _outcome(task: Task, model: nn.Module, record: Any, whose: str) -> Forgotten | None:
    """What the record tells about the model; None without one."""
    from excise.unlearning.forgotten import Forgotten

    if record is None:
        return None
    done = Forgotten.from_record(record, model, whose)
    if done.fingerprint is not None:
        task.fingerprint.require_same(done.fingerprint, whose)
    return done
