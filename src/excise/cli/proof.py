"""The proof of a deletion: an audit of the model, and the page that shows it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise.errors import InputError

if TYPE_CHECKING:  # these load torch
    from torch import nn

    from excise.cli.options import PageOptions
    from excise.evidence.auditing import Audit
    from excise.task.task import Task
    from excise.unlearning.forgotten import Forgotten

MAPPED = 4  # samples whose sensitivity a report shows


def prove(
    task: Task,
    after: nn.Module | Forgotten,
    ids: Sequence[int] | None,
    retrainings: int,
    report: Path | None,
    *,
    options: PageOptions,
    also: Mapping[str, Any],
    hashes: Mapping[str, str],
    show_samples: bool,
    seed: int,
    quiet: bool,
) -> Audit:
    """Audit a model against the task's, and write the page if asked; None for the ids that its record names."""
    from excise import processes
    from excise.evidence.auditing import audit as audit_model
    from excise.report.page import write_report
    from excise.report.samples import sample_views, sensitivity_maps
    from excise.unlearning.forgotten import Forgotten

    done = after if isinstance(after, Forgotten) else None
    asked = list(ids) if ids is not None else list(done.ids) if done else []
    found = audit_model(
        task,
        task.model,
        after,
        asked,
        retrained=retrainings or None,
        seed=seed,
        also=also,
        hash_key=options.key() if processes.is_first() else None,
        progress=sys.stderr.isatty() and not quiet,
    )
    if report is not None and processes.is_first():
        if options.hash_key is None and not quiet:
            click.echo(
                "the key of the samples' hashes is not kept; --hash-key FILE keeps one to prove them by", err=True
            )
        samples = maps = None
        if show_samples:
            model = after.model if isinstance(after, Forgotten) else after
            with processes.alone():
                samples = sample_views(task, asked)
                with contextlib.suppress(InputError):  # what is no picture has no map
                    maps = sensitivity_maps(task, task.model, model, asked[:MAPPED], seed=seed)
        settings = {"seed": seed} if done is None else {**done.settings, "audit seed": seed}
        write_report(
            found,
            report,
            samples=samples,
            maps=maps,
            settings=settings,
            reference=options.reference,
            operator=options.operator,
            file_hashes=hashes,
        )
    return found
