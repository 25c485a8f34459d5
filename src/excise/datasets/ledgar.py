"""LEDGAR: provisions of contracts and their labels, from the official jsonl file, plain or gzipped.

The clauses of ``load_stand_in`` have the same format but are not LEDGAR, and each says so of itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from excise.datasets.files import Folder, Source, numbered, read_lines

OFFICIAL_FILE = "LEDGAR_2016-2019_clean_proto.jsonl"
SAMPLE_FILE = "ledgar_lexglue_test1000_proto13.jsonl"
STAND_IN_FILE = "legal_clauses_proto13_noheading.jsonl"
PROTOTYPES = (
    "amendments",
    "assignments",
    "assigns",
    "counterparts",
    "entire agreements",
    "expenses",
    "governing laws",
    "notices",
    "severability",
    "successors",
    "survival",
    "terminations",
    "waivers",
)
SOURCE = Source(
    "LEDGAR",
    "https://drive.switch.ch/index.php/s/j9S0GRMAbGZKa1A (code: https://github.com/dtuggener/LEDGAR_provision_classification)",
    f"{OFFICIAL_FILE} (unpacked from its zip file)",
    "ledgar",
)
STAND_IN = Source(
    "The stand-in for LEDGAR (contract clauses, not LEDGAR itself)",
    "the project's own shared data",
    f"{STAND_IN_FILE}.gz (LEDGAR itself is read by load_ledgar)",
    "ledgar",
)


@dataclass(frozen=True)
class Provision:
    """A provision of a contract: its text, its labels, the document it is from; ``stand_in`` if it is not LEDGAR's."""

    text: str
    labels: tuple[str, ...]
    source: str
    stand_in: bool = False


def load_ledgar(
    folder: Folder = None, *, file: str = OFFICIAL_FILE, labels: Collection[str] | None = PROTOTYPES
) -> list[Provision]:
    """The provisions of an official file, in their order.

    ``file`` is the file's name in the folder. A label that is not among ``labels`` (the 13 prototypical ones) is an
    error; with None any label is right, as in LEDGAR's other, larger files.
    """
    return _load(SOURCE.locate(folder) / file, SOURCE, labels, stand_in=False)


def load_sample(folder: Folder = None) -> list[Provision]:
    """331 real provisions of LEDGAR that carry one prototypical label each: a small test set."""
    return load_ledgar(folder, file=SAMPLE_FILE)


def load_stand_in(folder: Folder = None) -> list[Provision]:
    """9,131 contract clauses with LEDGAR's 13 labels: a stand-in to train on, not LEDGAR. Say so with any result."""
    return _load(STAND_IN.locate(folder) / STAND_IN_FILE, STAND_IN, PROTOTYPES, stand_in=True)


def _load(path: Path, origin: Source, allowed: Collection[str] | None, *, stand_in: bool) -> list[Provision]:
    found, lines = read_lines(path, origin)
    provisions = []
    for number, line in numbered(lines):
        provision, fault = _parse(line, allowed, stand_in)
        if provision is None:
            raise origin.damaged(found, f"has a bad line {number}: {fault}")
        provisions.append(provision)
    if not provisions:
        raise origin.damaged(found, "is empty")
    return provisions


def _parse(line: str, allowed: Collection[str] | None, stand_in: bool) -> tuple[Provision | None, str]:
    """A line's provision, or None and what is wrong."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error})"
    if not isinstance(row, dict) or not {"provision", "label", "source"} <= row.keys():
        return None, "it needs the keys provision, label and source"
    text, labels, source = row["provision"], row["label"], row["source"]
    if not isinstance(text, str) or not isinstance(source, str):
        return None, "provision and source must be text"
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        return None, f"label must be a list of texts, not {labels!r}"
    unknown = [] if allowed is None else [label for label in labels if label not in allowed]
    if unknown:
        return None, f"the label {unknown[0]!r} is not one of {', '.join(allowed or ())}"
    return Provision(text, tuple(labels), source, stand_in), ""
