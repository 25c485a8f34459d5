"""Folders that drafts of files are written in, and the removal of those that killed runs left behind."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\.excise-draft-([0-9a-f]{8})-([0-9]{1,10})-[0-9a-f]{16}")
DAY = 86_400.0  # after which no one is still at a draft that has not changed


@contextlib.contextmanager
def draft_folder(beside: Path) -> Iterator[Path]:
    """A new folder in the given one, on the same disk, for its owner's eyes only; afterwards it is gone.

    Its name tells who made it, so that what a killed process left is removed by the next one that writes there.
    """
    remove_strays(beside)
    folder = beside / f".excise-draft-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_strays(folder: Path) -> None:
    """Remove drafts in a folder whose process is gone; what can't be removed stays, and nothing of others is touched.

    Whether a process of another machine, or of another container, is alive can't be seen: its drafts, like those of a
    process whose number was given to another, are removed when they have not changed for a day.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _is_stray(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_stray(entry: os.DirEntry[str]) -> bool:
    parts = NAME.fullmatch(entry.name)
    if parts is None:
        return False
    about = entry.stat(follow_symlinks=False)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return False
    return (parts[1] == _machine() and not _is_alive(int(parts[2]))) or _age(Path(entry.path)) > DAY


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def _age(folder: Path) -> float:
    """Seconds since anything in the folder changed."""
    return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))


@functools.cache
def _machine() -> str:
    """Where numbers of processes mean the same: this machine, since it was started, and this container."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
