"""Finding leftovers that nobody registered: copies of model versions, retrained models, embeddings and reports.

Files are known by their hash, by the hash of the weights in them, and by what excise writes into them. Curvature is
never in a file of excise's, and optimizer state is the user's own: these are found where they were registered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from excise._support.file_hashes import sha256_of_file
from excise._support.reading import is_regular_file, reason
from excise.errors import InputError
from excise.ledger.leftover_contents import Seen, of_version, told_by_content
from excise.ledger.leftover_known import Known
from excise.ledger.leftovers import Artefact, modified_time


@dataclass(frozen=True)
class Found:
    """A file that was computed with samples of the ledger's training set."""

    artefact: Artefact
    stale: bool | None
    """Whether it knows samples that are deleted; None where that can't be told from the file."""
    why: str
    """How it was recognised, in words."""


def scan(folders: Iterable[str | Path], known: Known) -> list[Found]:
    """Look through folders, with all that is in them, for files that belong to the ledger's training set.

    Nothing is followed that leads out of a folder, and nothing is changed. A folder that is not there has no files;
    what can't be read is an error, since leftovers may be in it.
    """
    found = []
    for path, about in _files(folders):
        digest = sha256_of_file(path)
        seen = _recognised(path, digest, known)
        if seen is not None:
            kind, version, stale, why = seen
            found.append(Found(Artefact(path, kind, digest, version, modified_time(about)), stale, why))
    return found


def _files(folders: Iterable[str | Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """All regular files, each once, by name."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise InputError(f"{error.filename}: can't be looked through for leftovers ({reason(error)}).") from None

    seen = set()
    for folder in folders:
        start = Path(folder).expanduser().resolve()
        inside = [(str(start.parent), [], [start.name])] if is_regular_file(start) else os.walk(start, onerror=refuse)
        for place, folders_inside, names in inside:
            folders_inside.sort()
            for path in sorted(Path(place) / name for name in names):
                try:
                    about = path.lstat()
                except FileNotFoundError:  # meanwhile
                    continue
                if stat.S_ISREG(about.st_mode) and path not in seen:
                    seen.add(path)
                    yield path, about


def _recognised(path: Path, digest: str, known: Known) -> Seen | None:
    if digest in known.by_file:
        return of_version(known.by_file[digest], known, "it is the file")
    if digest in known.by_artefact:
        artefact = known.by_artefact[digest]
        stale = known.deletes_after(artefact.version)
        return artefact.kind, artefact.version, stale, "it is a registered file, or a copy of it"
    return told_by_content(path, known)
