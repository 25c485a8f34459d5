"""``excise forget``: delete samples from a model, and write its new weights."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import excise
from excise.cli.launched import say, shared
from excise.cli.methods import (
    chosen_guard,
    chosen_method,
    guard_option,
    method_option,
    perturbation_option,
    set_option,
    with_perturbation,
)
from excise.cli.options import (
    FILE,
    PageOptions,
    proof_options,
    require_writable,
    task_option,
    workers_options,
)
from excise.cli.proof import prove
from excise.errors import InputError

if TYPE_CHECKING:  # these load torch
    from excise.task.task import Task


@dataclass(frozen=True)
class Named:
    """How the samples are named: by one of these."""

    ids: str | None
    ids_file: Path | None
    spec: str | None
    keys: str | None

    def __post_init__(self) -> None:
        if sum(given is not None for given in vars(self).values()) != 1:
            raise InputError("name the samples by one of --ids, --ids-file, --forget and --keys.")

    def request(self, task: Task) -> dict[str, Any]:
        """What to pass to ``Unlearner.forget``."""
        from excise.task.keys import keys_from_text
        from excise.task.requests import ids_in_file, ids_in_text

        if self.keys is not None:
            words = [word.strip() for word in self.keys.split(",") if word.strip()]
            return {"keys": keys_from_text(words, task.positions_of_keys)}
        if self.spec is not None:
            return {"what": self.spec}
        return {"what": ids_in_text(self.ids or "") if self.ids_file is None else ids_in_file(self.ids_file)}


@click.command()
@task_option
@click.option("--ids", metavar="3,5,9", help="Samples to forget: positions in the training set.")
@click.option("--ids-file", type=FILE, metavar="FILE", help="The same, one a line.")
@click.option(
    "--forget", "spec", metavar="SPEC", help="The same by a rule: class:3, class:3:100, hardest:20, random:1%."
)
@click.option("--keys", metavar="A,B", help="All samples of these keys, such as customers: Task(keys=...) has them.")
@click.option("--model", type=FILE, metavar="FILE", help="Weights to start from (.safetensors, .pt).")
@click.option(
    "--forgotten",
    type=FILE,
    metavar="FILE",
    help="Positions forgotten from these weights before, one a line: for weights that don't say so themselves.",
)
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Where to write the weights.")
@method_option
@set_option
@guard_option
@perturbation_option
@click.option(
    "--report",
    type=FILE,
    metavar="FILE",
    help="Write the record of what was done (.json), or audit it and write a page for people (.html).",
)
@click.option(
    "--retrainings", type=click.IntRange(min=0), default=0, show_default=True, help="Models to retrain for the audit."
)
@workers_options
@proof_options
@shared
def forget(
    address: str,
    ids: str | None,
    ids_file: Path | None,
    spec: str | None,
    keys: str | None,
    model: Path | None,
    forgotten: Path | None,
    out: Path,
    method: str,
    assignments: tuple[str, ...],
    guard: str | None,
    perturbation: str | None,
    report: Path | None,
    retrainings: int,
    show_samples: bool,
    page_options: PageOptions,
    seed: int,
    as_json: bool,
) -> None:
    """Make a trained model forget samples, and write its new weights.

    Weights in .safetensors say what is gone from them, so that a later request goes on from there: samples that were
    forgotten before are never learned again.

    \b
    Examples:
      excise forget --task my_project:task --ids 17,4242 --model in.safetensors --out out.safetensors
      excise forget --task my_project:task --keys ann,bob --method drift --out out.safetensors --report record.json
      excise forget --task my_project:task --ids 17 --out out.safetensors --report page.html --retrainings 3
      torchrun --nproc-per-node 2 -m excise forget --task my_project:task --ids 17 --out out.safetensors
    """
    from excise import processes
    from excise._support.files import write_json
    from excise._support.workers import require_sendable
    from excise.cli.records import circumstances, file_hashes
    from excise.task.loading import load_task
    from excise.task.sharded import refuse_sharded
    from excise.task.weights import TORCH, save_weights
    from excise.unlearning.unlearner import Unlearner

    named = Named(ids, ids_file, spec, keys)
    page = report is not None and report.suffix.lower() == ".html"
    if processes.is_first():
        require_writable(out, "--out", (".safetensors", *sorted(TORCH)))
        require_writable(report, "--report", (".json", ".html"))
    if not page and (retrainings or show_samples or page_options.also):
        raise InputError("--retrainings, --show-samples and --also are for the page that --report FILE.html writes.")
    if page and processes.is_first():
        page_options.key()  # a file that holds none is said before the work
    how = chosen_method(method, assignments)
    task = with_perturbation(load_task(address), perturbation)
    refuse_sharded(task.model, "excise forget")
    if page and task.test_set is None:
        raise InputError("--report FILE.html audits the model, which needs a test_set in the task.")
    require_sendable(task, "the task")
    also = page_options.further_sets()
    gone = _gone(task, model, forgotten)
    hashes = file_hashes(before=model)  # now, since --out may replace it
    unlearner = Unlearner(
        task,
        how,
        guard=chosen_guard(guard),
        forgotten=gone,
        seed=seed,
        progress=sys.stderr.isatty() and not as_json,
    )
    done = unlearner.forget(**named.request(task))
    record = {**done.as_dict(), "excise": excise.__version__}
    if processes.is_first():
        save_weights(done.model, out, record=record)
        hashes |= file_hashes(after=out)
    hashes = processes.gathered(hashes, "weights that are written")[0]
    record |= {"earlier": sorted(set(done.forgotten) - set(done.ids)), **circumstances(page_options, hashes)}
    if page:
        prove(
            task,
            done,
            None,
            retrainings,
            report,
            quiet=as_json,
            seed=seed,
            hashes=hashes,
            show_samples=show_samples,
            also=also,
            options=page_options,
        )
    elif report is not None and processes.is_first():
        write_json(report, record)
    if as_json:
        say(json.dumps(record, indent=2))
        return
    say(done.summary())
    if out.suffix != ".safetensors":
        say(f"{out.name} can't say what is forgotten from it: write .safetensors, or pass --forgotten next time")
    if model is not None and not gone:
        say(f"nothing was forgotten before, as far as {model.name} says; if something was, pass --forgotten")
    for file in (out, report):
        if file is not None:
            say(f"wrote {file}")


def _gone(task: Task, model: Path | None, forgotten: Path | None) -> tuple[int, ...]:
    """What was forgotten before, as the weights or the user say; the weights go into the task's model."""
    from excise.task.requests import ids_in_file
    from excise.task.weights import load_weights
    from excise.unlearning.forgotten import Forgotten

    record = None if model is None else load_weights(task.model, model)
    listed = () if forgotten is None else tuple(ids_in_file(forgotten).tolist())
    if record is None:
        return listed
    if forgotten is not None:
        raise InputError(f"{model} says itself what is forgotten from it; leave --forgotten out.")
    before = Forgotten.from_record(record, task.model, str(model))
    if before.fingerprint is not None:
        task.fingerprint.require_same(before.fingerprint, str(model))
    return before.forgotten
