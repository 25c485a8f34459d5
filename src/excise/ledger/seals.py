"""Seals: HMACs under the ledger's key on what workers act upon, so that no one without the key can turn their work.

A worker does not follow the whole chain of events before each batch. Whoever can write to the database could otherwise
exchange the identities of a request, and have someone else's samples deleted and certified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from excise.errors import InputError
from excise.ledger.events import Seal, canonical

OF_VERSION = (
    "version",
    "number",
    "parent",
    "file_sha256",
    "working_sha256",
    "method",
    "retained_count",
    "retained_root",
    "epsilon",
    "delta",
)


def seal_of_request(
    name: str, identities: Sequence[Sequence[str]], received_time: str, due_date: str, seal: Seal
) -> str:
    """Of who asks for what, and when."""
    listed = [list(one) for one in identities]
    return seal(canonical(["request", name, listed, received_time, due_date]).encode())


def seal_of_version(values: Mapping[str, Any], seal: Seal) -> str:
    """Of a model version: its files, its samples, and what it spent."""
    return seal(canonical(["version", *(values[name] for name in OF_VERSION)]).encode())


def require_seal_of_version(values: Mapping[str, Any], said: Any, seal: Seal) -> None:
    """Refuse a version that was not written under the ledger's key."""
    if said != seal_of_version(values, seal):
        raise InputError(
            f"model version {values['number']} was altered in the database, so that nothing is built on it; excise "
            "requests verify says what is wrong, and a backup has it right."
        )


def require_seal_of_request(name: str, said: Any, expected: str) -> None:
    """Refuse a request that was not written under the ledger's key."""
    if said != expected:
        raise InputError(
            f"request {name} was altered in the database, so that it is not carried out; excise requests verify says "
            "what is wrong, and a backup has it right."
        )
