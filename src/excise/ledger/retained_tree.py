"""A Merkle tree over the retained samples: one hash for the whole set, and proofs that a sample is not in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from excise.errors import InputError

LEAF_BYTES = 32
NOTHING = bytes(32)  # the hash of an empty subtree
BUCKET = 16  # leaves of a subtree, at most, whose inner hashes are not kept but computed when they are asked for

Pruned = str | list[Any]
"""Nested pairs on the way to leaves; a subtree that is not entered is ``"count:hash"``, an empty one ``"0"``."""


class RetainedTree:
    """A set of leaves, each 32 bytes, that can be proven to lack others; it never changes.

    A subtree holds the leaves that begin with the same bits, and has a number of leaves and a hash. An empty one has
    (0, 32 zero bytes); one leaf k has (1, SHA256(0x00 ‖ k)), however deep; else there are two halves, by the next bit,
    and it has (cₗ + cᵣ, SHA256(0x01 ‖ cₗ ‖ hₗ ‖ cᵣ ‖ hᵣ)), numbers as 8 bytes. So the root depends on the set alone.

    >>> one, other = bytes(32), bytes([255]) * 32
    >>> tree = RetainedTree([one, other])
    >>> tree.count, tree.root == RetainedTree([other, one]).root
    (2, True)
    >>> left = tree.without([one])
    >>> left.root == sha256(b"\\0" + other).digest()
    True
    >>> left.absence([one]) == f"1:{left.root.hex()}"  # what is left is another leaf: its hash is not that of this one
    True
    """

    def __init__(self, leaves: Any) -> None:
        """Build the tree.

        Args:
            leaves: Sequences of 32 bytes, or rows of a uint8 array of n × 32, in any order and each once.
        """
        self._top = _built(_sorted(leaves), 0)

    @property
    def count(self) -> int:
        """How many leaves there are."""
        return self._top.many

    @property
    def root(self) -> bytes:
        """The hash of the whole set: 32 bytes."""
        return self._top.digest

    def without(self, leaves: Any) -> Self:
        """The tree of the other leaves; all those named must be in this one."""
        found = object.__new__(type(self))
        found._top = _removed(self._top, _sorted(leaves), 0)
        return found

    def absence(self, leaves: Any) -> Pruned:
        """The part of the tree that shows that some leaves are not in it, and nothing of those that are but hashes."""
        return _pruned(self._top, _sorted(leaves), 0)


class _Bucket(NamedTuple):
    """A subtree of few leaves, which are all there is to keep."""

    many: int
    digest: bytes
    leaves: bytes
    """One after the other, in order."""


class _Branch(NamedTuple):
    """A subtree of many leaves."""

    many: int
    digest: bytes
    halves: tuple[_Subtree, _Subtree]


_Subtree = _Bucket | _Branch


def _built(leaves: list[bytes], depth: int) -> _Subtree:
    if len(leaves) <= BUCKET:
        return _Bucket(len(leaves), _digest(leaves, depth), b"".join(leaves))
    middle = _middle(leaves, depth)
    return _joined(_built(leaves[:middle], depth + 1), _built(leaves[middle:], depth + 1))


def _joined(left: _Subtree, right: _Subtree) -> _Branch:
    digest = _digest_of_halves(left.many, left.digest, right.many, right.digest)
    return _Branch(left.many + right.many, digest, (left, right))


def _digest_of_halves(left: int, left_digest: bytes, right: int, right_digest: bytes) -> bytes:
    return sha256(b"\1" + left.to_bytes(8, "big") + left_digest + right.to_bytes(8, "big") + right_digest).digest()


def _digest(leaves: Sequence[bytes], depth: int) -> bytes:
    """The hash of a subtree by its leaves."""
    many = len(leaves)
    if many < 2:
        return sha256(b"\0" + leaves[0]).digest() if many else NOTHING
    left = _middle(leaves, depth)
    left_digest, right_digest = _digest(leaves[:left], depth + 1), _digest(leaves[left:], depth + 1)
    return _digest_of_halves(left, left_digest, many - left, right_digest)


def _middle(leaves: Sequence[bytes], depth: int) -> int:
    """How many of the leaves, which are in order and agree in the bits before, have a 0 at this depth."""
    byte, bit = depth >> 3, 128 >> (depth & 7)
    low, high = 0, len(leaves)
    if not leaves[-1][byte] & bit:
        return high
    while low < high:
        middle = (low + high) // 2
        if leaves[middle][byte] & bit:
            high = middle
        else:
            low = middle + 1
    return low


def _removed(subtree: _Subtree, leaves: list[bytes], depth: int) -> _Subtree:
    """The subtree without some of its leaves."""
    if not leaves:
        return subtree
    if isinstance(subtree, _Bucket):
        gone = set(leaves)
        kept = [leaf for leaf in _split(subtree.leaves) if leaf not in gone]
        if len(kept) + len(leaves) != subtree.many:
            unknown = min(gone.difference(_split(subtree.leaves)))
            raise InputError(f"leaves has {unknown.hex()}, which is not in the tree; name leaves that are retained.")
        return _Bucket(len(kept), _digest(kept, depth), b"".join(kept))
    middle = _middle(leaves, depth)
    left, right = subtree.halves
    return _merged(_removed(left, leaves[:middle], depth + 1), _removed(right, leaves[middle:], depth + 1))


def _merged(left: _Subtree, right: _Subtree) -> _Subtree:
    """Two halves as one subtree, of which nothing but its leaves is kept if they are few."""
    joined = _joined(left, right)
    if joined.many > BUCKET:
        return joined
    leaves = _leaves(joined)
    digest = joined.digest if joined.many > 1 else _digest(_split(leaves), 0)
    return _Bucket(joined.many, digest, leaves)


def _leaves(subtree: _Subtree) -> bytes:
    return subtree.leaves if isinstance(subtree, _Bucket) else b"".join(map(_leaves, subtree.halves))


def _pruned(subtree: _Subtree, absent: list[bytes], depth: int) -> Pruned:
    """What shows that leaves are not in the subtree."""
    if not absent or subtree.many < 2:
        if subtree.many == 1 and any(sha256(b"\0" + leaf).digest() == subtree.digest for leaf in absent):
            raise InputError(f"leaves has {_leaves(subtree).hex()}, which is in the tree: take it out first.")
        return f"{subtree.many}:{subtree.digest.hex()}" if subtree.many else "0"
    left, right = subtree.halves if isinstance(subtree, _Branch) else _halves(subtree, depth)
    middle = _middle(absent, depth)
    return [_pruned(left, absent[:middle], depth + 1), _pruned(right, absent[middle:], depth + 1)]


def _halves(bucket: _Bucket, depth: int) -> tuple[_Subtree, _Subtree]:
    leaves = _split(bucket.leaves)
    middle = _middle(leaves, depth)
    return _built(leaves[:middle], depth + 1), _built(leaves[middle:], depth + 1)


def _split(leaves: bytes) -> list[bytes]:
    return [leaves[start : start + LEAF_BYTES] for start in range(0, len(leaves), LEAF_BYTES)]


def _sorted(leaves: Any) -> list[bytes]:
    """The leaves in order, each of which must be there once."""
    given = _listed(leaves)
    given.sort()
    twice = next((one for one, other in pairwise(given) if one == other), None)
    if twice is not None:
        raise InputError(f"leaves has {twice.hex()} twice; name every leaf once.")
    return given


def _listed(leaves: Any) -> list[bytes]:
    what = f"leaves must be sequences of {LEAF_BYTES} bytes, or rows of a uint8 array of n × {LEAF_BYTES}"
    if isinstance(leaves, np.ndarray):
        if leaves.dtype != np.uint8 or leaves.ndim != 2 or leaves.shape[1] != LEAF_BYTES:
            raise InputError(f"{what}, not an array of {leaves.dtype} of shape {leaves.shape}.")
        return _split(leaves.tobytes())
    if isinstance(leaves, str | bytes | bytearray) or not isinstance(leaves, Iterable):
        raise InputError(f"{what}, not a single {type(leaves).__name__}.")
    given = list(leaves)
    wrong = next((one for one in given if not isinstance(one, bytes) or len(one) != LEAF_BYTES), None)
    if wrong is not None:
        size = f"{len(wrong)} bytes" if isinstance(wrong, bytes) else f"a {type(wrong).__name__}"
        raise InputError(f"{what}, but one is {size}.")
    return given
