"""How much memory there is, and sizes in words."""

from __future__ import annotations

import os
import re
from pathlib import Path

from excise.errors import InputError

UNITS = {"": 1, "B": 1} | {
    f"{letter}{'i' if binary else ''}B": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kMGT", 1)
    for binary in (False, True)
}
_CGROUP = Path("/sys/fs/cgroup")


def bytes_in(size: int | str, name: str) -> int:
    """A size in bytes, given so or in words.

    >>> bytes_in("2GiB", "memory"), bytes_in("1.5 MB", "memory"), bytes_in(7, "memory")
    (2147483648, 1500000, 7)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", str(size))
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if isinstance(size, bool) or not isinstance(size, int | str) or found is None or found[2].lower() not in units:
        raise InputError(f"{name} must be a number of bytes or a size such as '2GiB' or '500MB', not {size!r}.")
    return int(float(found[1]) * units[found[2].lower()])


def in_words(size: float) -> str:
    """A size for people.

    >>> in_words(3 * 2**30), in_words(1234), in_words(0)
    ('3.0 GiB', '1.2 KiB', '0 B')
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def available() -> int:
    """Bytes that this process may still take, as far as the system and the limit of its group say."""
    free = _in_system()
    limit = _limit_of_group()
    return free if limit is None else min(free, limit)


def resident(process: str = "self") -> int:
    """Bytes that a process has in memory now; 0 where that is not known."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _in_system() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # some of it is in use
    except (ValueError, OSError, AttributeError):
        return 2**62


def _limit_of_group() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        now = int((_CGROUP / "memory.current").read_text())
        return None if limit == "max" else max(0, int(limit) - now)
    except (OSError, ValueError):
        return None
