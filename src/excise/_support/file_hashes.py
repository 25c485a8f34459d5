"""Hashes of files, as ``sha256sum`` gives them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from excise.errors import InputError


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes: what ``sha256sum FILE`` prints."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: can't be read for its hash ({error.strerror}).") from None
