"""For the record: hashes, software and settings of a report, without paths."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import excise
from excise.report.formatting import duration

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

PATH = re.compile(r"""(^|[\s'"=(\[,])(~\w*|\.{1,2}|[A-Za-z]:|file:/*)?[/\\]\S|[/\\][^\s/\\]*\.\w+""")

CHANGING = "none: the samples differ at each reading"


@dataclass(frozen=True)
class Record:
    """Names and values, so that everything could be done again."""

    hashes: tuple[tuple[str, str], ...]
    """SHA-256 of the models, of their files where these are known, and of the data."""
    audit: tuple[tuple[str, str], ...]
    software: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]


def record(audit: Audit, settings: Mapping[str, Any], file_hashes: Mapping[str, str]) -> Record:
    """Models, data, software and settings."""
    models = {"before": audit.original, "after": audit.unlearned, **{one.name: one for one in audit.retrained}}
    hashes = {f"Model {name}, SHA-256 of its weights": one.model_hash for name, one in models.items()}
    hashes |= {f"File of the model {name}, as sha256sum gives it": digest for name, digest in file_hashes.items()}
    facts = {
        "Seed of the audit": str(audit.seed),
        "Retained samples looked at": f"{audit.original.retain.count:,}",
        "Test samples": f"{audit.original.test.count:,}",
    }
    if audit.change.seconds is not None:
        facts["Time of the request"] = duration(audit.change.seconds)
    if audit.change.retraining_seconds is not None:
        facts["Time of a retraining"] = duration(audit.change.retraining_seconds)
    software = {
        "excise": excise.__version__,
        "Python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "Platform": f"{platform.system()} {platform.machine()}",
    }
    return Record(
        hashes=(*hashes.items(), ("Training data, SHA-256", audit.train_hash or CHANGING)),
        audit=tuple(facts.items()),
        software=tuple(software.items()),
        settings=written_pairs(settings),
    )


def written_pairs(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Settings, or what else comes as a mapping, as names and text."""
    return tuple((name, written(value)) for name, value in flattened(settings))


def flattened(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings within settings under one name each.

    >>> list(flattened({"seed": 0, "drift": {"lr": 0.1}}))
    [('seed', 0), ('drift.lr', 0.1)]
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def written(value: Any) -> str:
    """A setting as text, without what a path would tell about the machine and its users.

    >>> written(0.010), written(True), written(["drift", 3]), written("/home/ada/model.pt")
    ('0.01', 'yes', 'drift, 3', '(a path: left out)')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value))
    if isinstance(value, PurePath) or PATH.search(str(value)):
        return "(a path: left out)"
    if isinstance(value, float):
        return f"{value:.6g}"
    return {"True": "yes", "False": "no", "None": "–"}.get(str(value), str(value))
