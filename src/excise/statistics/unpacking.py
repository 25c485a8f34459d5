"""Compressed files, read up to a bound: a file of a few kilobytes can unpack to more than any machine has."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from excise.errors import InputError

MOST_BYTES = 4 * 2**30
SUSPECT_RATIO, SUSPECT_BYTES = 100, 100 * 2**20  # tables shrink tenfold, hardly ever a hundredfold
READ_AT_ONCE = 2**20


def _zstandard(path: Path) -> Any:
    import zstandard  # type: ignore[import-not-found,unused-ignore]

    return zstandard.open(path, "rb")


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}


def unpack(path: Path, most: int | None) -> BinaryIO:
    """The bytes of a compressed file, refused where they are more than ``most``.

    None takes the usual bound, and takes a file of 100 MiB that is a hundredth of that on disk for a trap as well.
    """
    packed, parts, total = path.stat().st_size, [], 0
    with OPENERS[path.suffix.lower()](path) as stream:
        while part := stream.read(READ_AT_ONCE):
            parts.append(part)
            total += len(part)
            refuse_too_large(path, total, packed, most)
    return io.BytesIO(b"".join(parts))


def refuse_too_large(path: Path, unpacked: int, packed: int, most: int | None) -> None:
    """Refuse what unpacks to too much, with the way to read it nevertheless."""
    trap = most is None and unpacked > SUSPECT_BYTES and unpacked > SUSPECT_RATIO * packed
    if trap or unpacked > (MOST_BYTES if most is None else most):
        raise InputError(
            f"{path}: {packed:,} bytes unpack to {unpacked:,} or more, and reading stopped there; if that is right, "
            "allow it by --max-gigabytes (max_bytes= of read)."
        )
