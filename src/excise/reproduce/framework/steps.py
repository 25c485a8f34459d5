"""The outcome of a step as the content of a file: sealed by a hash, so that damage and mix-ups are found.

A hash guards against accidents, not against who writes a file and its hash anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from dataclasses import dataclass
from typing import Any

SEAL = b"\nsha256 "  # what the hash at the end of tensors' files follows
LONGEST = 100  # letters of a key in a file's name


class Damaged(ValueError):
    """Content that is not what was written for a step."""


@dataclass(frozen=True)
class Outcome:
    """What a step gave, and the seconds that it took."""

    key: str
    seconds: float
    value: Any


def file_name(key: str, ending: str) -> str:
    """A name that can be read, and that no other key has: "a/b" and "a b" differ in the hash alone."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", key).strip("-.")[:LONGEST]
    return f"{words}-{hashlib.sha256(key.encode()).hexdigest()[:8]}{ending}"


def values_to_bytes(outcome: Outcome) -> bytes:
    """Plain values as JSON."""
    record = vars(outcome)
    return json.dumps(record | {"sha256": _hash_of_record(record)}, allow_nan=False).encode()


def values_from_bytes(content: bytes, key: str) -> Outcome:
    """What ``values_to_bytes`` made of the outcome of this step."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        raise Damaged("it is no JSON") from None
    if not isinstance(record, dict) or record.keys() != {"key", "seconds", "value", "sha256"}:
        raise Damaged("it is no record of a step")
    if record.pop("sha256") != _hash_of_record(record):
        raise Damaged("its hash is that of other values")
    return _checked(record, key)


def tensors_to_bytes(outcome: Outcome) -> bytes:
    """Tensors, numbers and words in dictionaries, lists and tuples."""
    import torch

    buffer = io.BytesIO()
    torch.save(vars(outcome), buffer)
    content = buffer.getvalue()
    return content + SEAL + hashlib.sha256(content).hexdigest().encode()


def tensors_from_bytes(content: bytes, key: str) -> Outcome:
    """What ``tensors_to_bytes`` made of the outcome of this step."""
    import torch

    content, seal, found = content.rpartition(SEAL)
    if not seal or hashlib.sha256(content).hexdigest().encode() != found:
        raise Damaged("its hash is that of other tensors")
    try:
        record = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # of many kinds, for a file that others made
        raise Damaged(f"it can't be read as tensors, {type(error).__name__}") from None
    if not isinstance(record, dict) or record.keys() != {"key", "seconds", "value"}:
        raise Damaged("it is no record of a step")
    return _checked(record, key)


def _checked(record: dict[str, Any], key: str) -> Outcome:
    seconds = record["seconds"]
    if record["key"] != key:
        raise Damaged(f"it is of the step {record['key']!r}")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
        raise Damaged(f"it took {seconds!r} seconds")
    return Outcome(key, float(seconds), record["value"])


def _hash_of_record(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
