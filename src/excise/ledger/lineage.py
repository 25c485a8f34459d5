"""Lineage: how one model version came from another, as a tree, and any version that is held, had back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from excise.errors import InputError
from excise.ledger.versions import ModelFiles, Version, find_version, head_version
from excise.task.hashing import hash_of_model
from excise.task.weights import save_weights

if TYPE_CHECKING:
    from torch import nn

    from excise.ledger.ledger import Ledger
    from excise.task.task import Task

SHOWN = 12  # digits of a hash


def as_tree(versions: Iterable[Version]) -> str:
    """The versions as a tree of lines, each with what was done.

    Requests follow one another, so that the tree is a line unless a version was gone back to.
    """
    children: dict[str | None, list[Version]] = {}
    for one in versions:
        children.setdefault(one.parent, []).append(one)
    lines: list[str] = []
    pending = [(one, "") for one in reversed(children.get(None, []))]
    while pending:
        one, indent = pending.pop()
        lines.append(f"{indent}{_line(one)}")
        below = children.get(one.version, [])
        deeper = indent + ("  " if len(below) > 1 else "")
        pending += [(child, deeper) for child in reversed(below)]
    return "\n".join(lines)


def _line(one: Version) -> str:
    held = "" if one.purged_time is None else f", purged {one.purged_time[:10]}"
    samples = f"{one.retained_count:,} samples"
    return f"● {one.number}  {one.version[:SHOWN]}  {one.made_time[:19]}  {one.method}, {samples}{held}"


def model_at(ledger: Ledger, task: Task, version: str) -> nn.Module:
    """The model as it was given out at a version: its hash, the beginning of it, or ``"head"``."""
    with ledger.database.reading() as connection:
        found = head_version(connection) if version == "head" else find_version(connection, version)
    if found is None:
        raise InputError("the ledger has no model version yet; excise requests process makes the first.")
    return ModelFiles.of(ledger).read(found, task.model)


def check_out(ledger: Ledger, task: Task, version: str, path: str | Path) -> None:
    """Write a version's weights to a file of the user's."""
    place = Path(path)
    if place.suffix not in (".safetensors", ".pt", ".pth", ".bin"):
        raise InputError(f"{path}: weights are written to .safetensors or .pt files.")
    model = model_at(ledger, task, version)
    record = {"ledger": ledger.id, "version": hash_of_model(model)}
    save_weights(model, place, record=record if place.suffix == ".safetensors" else None)
