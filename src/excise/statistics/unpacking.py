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


class _Watched(io.RawIOBase):
    """Unpacked bytes that go by, refused where they are too many for what they came from."""

    def __init__(self, path: Path, most: int | None) -> None:
        self._path, self._most, self._total = path, most, 0
        self._packed = path.stat().st_size
        self._file = OPENERS[path.suffix.lower()](path)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some more bytes."""
        part = self._file.read(len(buffer))
        self._total += len(part)
        if self._most is None:
            _refuse_traps(self._path, self._total, self._packed)
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        super().close()


def stream(path: Path, most: int | None) -> BinaryIO:
    """The bytes of a compressed file as they are unpacked; nothing is held, so that only traps are refused."""
    return io.BufferedReader(_Watched(path, most), READ_AT_ONCE)


def refuse_too_large(path: Path, unpacked: int, packed: int, most: int | None) -> None:
    """Refuse what unpacks to too much, with the way to read it nevertheless."""
    if most is None:
        _refuse_traps(path, unpacked, packed)
    if unpacked > (MOST_BYTES if most is None else most):
        raise _too_large(path, unpacked, packed)


def _refuse_traps(path: Path, unpacked: int, packed: int) -> None:
    if unpacked > SUSPECT_BYTES and unpacked > SUSPECT_RATIO * packed:
        raise _too_large(path, unpacked, packed)


def _too_large(path: Path, unpacked: int, packed: int) -> InputError:
    return InputError(
        f"{path}: {packed:,} bytes unpack to {unpacked:,} or more, and reading stopped there; if that is right, "
        "allow it by --max-gigabytes (max_bytes= of read), or have some of the rows searched by --sample."
    )
