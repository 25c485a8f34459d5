"""Forgotten samples in other sets, such as the one by which training was stopped: they shaped the model there too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from excise.errors import InputError
from excise.evidence.outcomes import Finding
from excise.task.batches import inputs_of, refuse_tables
from excise.task.hashing import update
from excise.task.keys import group_by_key
from excise.task.task import Task

SHOWN = 5  # positions that a finding names


def found_elsewhere(
    task: Task, forgotten: Task, also: Mapping[str, Any], keys: tuple[Any, ...] | None
) -> dict[str, tuple[int, ...]]:
    """In each further set, such as one for validation, the positions of forgotten samples, or of their keys.

    Args:
        task: How samples are read.
        forgotten: The task of the forgotten samples alone.
        also: Sets by name; with a set may come the key of each of its samples, as a pair.
        keys: The keys that the request named; None where it named samples.
    """
    sets = admitted_sets(also)
    known = {input_digest(forgotten, place, forgotten.train_set) for place in range(len(forgotten.train_set))}
    return {name: _places(task, data, groups, known, set(keys or ())) for name, (data, groups) in sets.items()}


def admitted_sets(also: Any) -> dict[str, tuple[Any, dict[Any, list[int]]]]:
    """The further sets, each with the positions of its keys; an error for what is none."""
    if not isinstance(also, Mapping):
        raise InputError(f"also must be a mapping of names to data sets, not a {type(also).__name__}.")
    return {str(name): _admitted(str(name), given) for name, given in also.items()}


def _admitted(name: str, given: Any) -> tuple[Any, dict[Any, list[int]]]:
    paired = isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "__getitem__")
    data, keys = given if paired else (given, None)
    refuse_tables(data, f"also[{name!r}]")
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise InputError(f"also[{name!r}] must be a data set with a length, or such a set and its keys as a pair.")
    return data, {} if keys is None else group_by_key(keys, len(data))


def _places(
    task: Task, data: Any, groups: Mapping[Any, list[int]], known: set[bytes], keys: set[Any]
) -> tuple[int, ...]:
    named = {place for key in keys & groups.keys() for place in groups[key]}
    return tuple(sorted(named | {place for place in range(len(data)) if input_digest(task, place, data) in known}))


def input_digest(task: Task, sample: int, data: Any) -> bytes:
    """Of the inputs alone: another label does not make it another image."""
    digest = hashlib.sha256()
    update(digest, inputs_of(task.batch([sample], data)))
    return digest.digest()


def findings(elsewhere: Mapping[str, tuple[int, ...]]) -> tuple[Finding, ...]:
    """What was found, for people.

    >>> findings({"validation": (3, 8)})[0].text[:45]
    '2 samples of the request are in it (positions'
    """
    return tuple(_finding(name, places) for name, places in elsewhere.items())


def _finding(name: str, places: tuple[int, ...]) -> Finding:
    title = f"Also in {name}"
    if not places:
        return Finding("good", title, "None of the forgotten samples is in this set.")
    one = len(places) == 1
    count = "1 sample of the request is" if one else f"{len(places):,} samples of the request are"
    shown = ", ".join(map(str, places[:SHOWN])) + (" and more" if len(places) > SHOWN else "")
    return Finding(
        "warning",
        title,
        f"{count} in it (position{'' if one else 's'} {shown}). What was chosen by this set has seen "
        f"{'it' if one else 'them'}: delete {'it' if one else 'them'} there too, and choose again without.",
    )
