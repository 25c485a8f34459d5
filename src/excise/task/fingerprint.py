"""By what a training set is recognised, so that positions in it are never taken for positions in another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError
from excise.task.hashing import update

if TYPE_CHECKING:
    from excise.task.task import Task

READ_TWICE = 4  # samples, to see whether they are the same at every reading
READ_AT_ONCE = 64  # samples, where a set can do that


@dataclass(frozen=True)
class Fingerprint:
    """What tells a training set from others; nothing about a sample can be read from it."""

    samples: int
    ordered: str | None
    """SHA-256 of all samples in their order; None for a set that gives other values at each reading."""
    unordered: str | None
    """The same whatever their order, so that a set that was merely re-ordered is told from another one."""
    keys: str | None = None
    """SHA-256 of the samples' keys in their order; None for a task without keys."""

    def require_same(self, saved: Fingerprint, whose: str) -> None:
        """Refuse positions in another training set, saying how it differs."""
        if self.samples != saved.samples:
            raise InputError(
                f"{whose} is of a training set of {saved.samples:,} samples, and train_set has {self.samples:,}: "
                "positions in it may name other samples now; pass the set that the model was trained on."
            )
        if None not in (self.keys, saved.keys) and self.keys != saved.keys:
            raise InputError(
                f"{whose} is of a task whose samples had other keys, or the same ones in another order: keys would "
                "name other samples now; pass the keys that belong to train_set as it was."
            )
        if saved.ordered is None or self.ordered == saved.ordered:
            return
        if self.ordered is None:
            raise InputError(
                f"{whose} is of a training set with a fingerprint, and train_set gives other values at each reading, "
                "so it can't be recognised; pass it without augmentation."
            )
        if self.unordered == saved.unordered:
            raise InputError(
                f"{whose} is of a training set with the same samples in another order: positions in it name other "
                "samples now; restore the order, or forget by keys and begin anew from the original model."
            )
        raise InputError(
            f"{whose} is of another training set than train_set, which has as many samples but other ones; pass the "
            "set that the model was trained on."
        )

    @classmethod
    def from_dict(cls, entry: Any, whose: str) -> Fingerprint:
        """Read what ``asdict`` wrote."""
        wanted = {"samples": int, "ordered": str | None, "unordered": str | None, "keys": str | None}
        if not isinstance(entry, Mapping) or set(entry) != set(wanted):
            raise InputError(f"{whose} has a damaged fingerprint of the training set; was it edited?")
        if any(not isinstance(entry[name], kind) for name, kind in wanted.items()):
            raise InputError(f"{whose} has a damaged fingerprint of the training set; was it edited?")
        return cls(**entry)


def fingerprint_of(task: Task) -> Fingerprint:
    """Read the first samples once more, to see whether their hashes stay what they are."""
    digests = task.sample_digests
    keys = None if task.keys is None else _digest_of_keys(task)
    if not all(sample_digest(task, place) == one.tobytes() for place, one in enumerate(digests[:READ_TWICE])):
        return Fingerprint(len(digests), None, None, keys)
    total = sum(int.from_bytes(one, "big") for one in digests) % 2**256
    return Fingerprint(len(digests), hashlib.sha256(digests.tobytes()).hexdigest(), f"{total:064x}", keys)


def digests_of(task: Task) -> NDArray[np.uint8]:
    """SHA-256 of every sample, one row each, by one reading of the training set."""
    read = b"".join(_digests(task))
    return np.frombuffer(read, dtype=np.uint8).reshape(-1, hashlib.sha256().digest_size)


def _digests(task: Task) -> Iterator[bytes]:
    """The same as ``sample_digest`` of one sample after the other, with several read at once."""
    for some in task.all_ids.split(READ_AT_ONCE):
        for batch in task.one_by_one(some):
            digest = hashlib.sha256()
            update(digest, batch)
            yield digest.digest()


def _digest_of_keys(task: Task) -> str:
    """Of which key each sample has."""
    digest = hashlib.sha256()
    for key, places in task.positions_of_keys.items():
        digest.update(repr((str(key), places)).encode())
    return digest.hexdigest()


def sample_digest(task: Task, place: int) -> bytes:
    """SHA-256 of one sample, input and target."""
    digest = hashlib.sha256()
    update(digest, task.batch([place]))
    return digest.digest()
