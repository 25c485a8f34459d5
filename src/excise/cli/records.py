"""What a record says besides what was done: when, by whom, for what, and with which files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from excise._support.file_hashes import sha256_of_file
from excise.cli.options import PageOptions


def file_hashes(**files: Path | None) -> dict[str, str]:
    """SHA-256 of the files that are known, as ``sha256sum`` gives it."""
    return {name: sha256_of_file(file) for name, file in files.items() if file is not None}


def circumstances(options: PageOptions, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Date, reference, operator and hashes of files, for JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "reference": options.reference,
        "operator": options.operator,
        "sha256": {name: hashes.get(name) for name in ("before", "after")},
    }
