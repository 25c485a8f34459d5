"""Training samples as leaves of the ledger's tree, and how they are recognised after forgotten rows were taken away.

A leaf is a keyed hash of a sample's content, of its key, and of a number that tells identical twins apart. The ledger
has the leaves of what is forgotten, and commits to those of what is retained.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError
from excise.ledger.identities import HmacOf
from excise.task.task import Task

Rows = NDArray[np.uint8]
HASH = 32  # bytes of SHA-256, and so of a leaf
MOST_READINGS = 64  # of a set of which some forgotten rows are there and others not, with twins among them


def bases_of(task: Task) -> Rows:
    """What leaves are made of besides the number, one row each: SHA-256 of the sample, and of its key or else zeros.

    The key None stands for a sample of nobody.
    """
    if task.fingerprint.ordered is None:
        raise InputError(
            "train_set gives other values at each reading, so that its samples can't be recognised; pass plain_set= to "
            "Task: the same samples without augmentation."
        )
    keys = np.zeros((len(task.train_set), HASH), dtype=np.uint8)
    if task.keys is not None:
        for key, places in task.positions_of_keys.items():
            if key is not None:
                text = str(key).encode("utf-8", "surrogatepass")
                keys[places] = np.frombuffer(hashlib.sha256(text).digest(), dtype=np.uint8)
    return np.hstack([task.sample_digests, keys])


def leaf(base: bytes, number: int, hmac_of: HmacOf) -> bytes:
    """The leaf of the sample that is the ``number``-th (from 0 on) of those with this content and key.

    >>> leaf(b"content and key;", 258, lambda kind, message: kind.encode() + b": " + message)
    b'sample: content and key;\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x02'
    """
    return hmac_of("sample", base + number.to_bytes(8, "big"))


def leaves_of(task: Task, hmac_of: HmacOf) -> Rows:
    """The leaves of a whole training set, one row of 32 bytes for each sample, in its order."""
    seen: Counter[bytes] = Counter()
    found = []
    for row in bases_of(task):
        base = row.tobytes()
        found.append(leaf(base, seen[base], hmac_of))
        seen[base] += 1
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, HASH)


@dataclass(frozen=True, eq=False)
class Membership:
    """Which leaf each sample of a training set is, and which of them are forgotten."""

    leaves: Rows
    forgotten: NDArray[np.int64]
    """Positions, in rising order; empty where forgotten rows were all taken away."""

    @property
    def retained(self) -> Rows:
        """The leaves of all others."""
        return np.delete(self.leaves, self.forgotten, axis=0)


class _Twins(NamedTuple):
    """The samples that are there of one content and key, and the numbers that such samples have had."""

    places: list[int]
    gone: list[int]
    """Numbers whose leaf is forgotten."""
    left: list[int]
    """The lowest numbers that are not; as many as places."""

    @property
    def most_kept(self) -> int:
        """How many of the places may be forgotten samples: numbers below the last forgotten one need places, too."""
        retained = 0 if not self.gone else self.gone[-1] + 1 - len(self.gone)
        return min(len(self.gone), len(self.places) - retained)

    def numbers(self, kept: int) -> list[int]:
        """The number of each place, if so many of them are forgotten samples."""
        return sorted(self.left[: len(self.places) - kept] + self.gone[:kept])


def recognised(
    bases: Rows,
    forgotten: Collection[bytes],
    hmac_of: HmacOf,
    *,
    retained_count: int,
    is_retained: Callable[[Rows], bool],
) -> Membership:
    """Tell which leaf each sample is, whether forgotten rows are still there, were taken away, or only some of them.

    A sample without a twin tells by itself. Twins, which differ in their numbers alone, do not: if one of three is
    forgotten and two are there, it may have been taken away, or another one is missing. So

    1. for each content and key, the numbers are found whose leaves are forgotten;
    2. the number of samples tells how many forgotten rows are still there;
    3. for each way to share these out, the other rows take the lowest numbers that are not forgotten, in their order,
       and the ledger says whether their leaves are those that it retains.

    For the whole set, and for one without any forgotten row, there is one way.

    Args:
        bases: Of the samples that are there, as ``bases_of`` gives them.
        forgotten: Leaves that the ledger has as deleted.
        hmac_of: The ledger's keyed hash.
        retained_count: How many samples the ledger retains.
        is_retained: Whether some leaves, one row each, are those that the ledger retains: the same root.
    """
    there = len(bases) - retained_count
    if there < 0:
        raise InputError(
            f"train_set has {len(bases):,} samples, and the ledger retains {retained_count:,}: some that were never "
            "forgotten are missing; pass the training set as it was."
        )
    if there > len(forgotten):
        raise InputError(
            f"train_set has {len(bases):,} samples, and the ledger knows of {retained_count + len(forgotten):,}: "
            "others were added; pass the training set as it was, or begin a ledger for the new one."
        )
    groups = _groups(bases, frozenset(forgotten), hmac_of)
    for kept in itertools.islice(_ways(groups, there), MOST_READINGS):
        found = _membership(bases, groups, kept, hmac_of)
        if is_retained(found.retained):
            return found
    raise InputError(
        "train_set is not the ledger's: without what is forgotten, its samples are not those that the ledger retains. "
        "Pass the training set as it was, with all forgotten rows or without any of them."
    )


def _groups(bases: Rows, forgotten: frozenset[bytes], hmac_of: HmacOf) -> dict[bytes, _Twins]:
    found: dict[bytes, _Twins] = {}
    for place, row in enumerate(bases):
        found.setdefault(row.tobytes(), _Twins([], [], [])).places.append(place)
    for base, group in found.items():
        number = 0
        while len(group.left) < len(group.places):  # a row that is there has none of the numbers that follow
            is_gone = bool(forgotten) and leaf(base, number, hmac_of) in forgotten
            (group.gone if is_gone else group.left).append(number)
            number += 1
    return found


def _ways(groups: dict[bytes, _Twins], there: int) -> Iterator[Counter[bytes]]:
    """Every way in which so many forgotten rows can still be there: how many of each content and key."""
    possible = Counter({base: group.most_kept for base, group in groups.items() if group.gone})
    removed = possible.total() - there
    if removed >= 0:
        for absent in itertools.combinations(possible.elements(), removed):
            yield possible - Counter(absent)


def _membership(bases: Rows, groups: dict[bytes, _Twins], kept: Counter[bytes], hmac_of: HmacOf) -> Membership:
    leaves, forgotten = np.zeros((len(bases), HASH), dtype=np.uint8), []
    for base, group in groups.items():
        gone = set(group.gone)
        for place, number in zip(group.places, group.numbers(kept[base]), strict=True):
            leaves[place] = np.frombuffer(leaf(base, number, hmac_of), dtype=np.uint8)
            if number in gone:
                forgotten.append(place)
    return Membership(leaves, np.array(sorted(forgotten), dtype=np.int64))
