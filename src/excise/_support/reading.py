"""What is asked of a file before it is read: that it is there, and is one."""

from __future__ import annotations

import stat
from pathlib import Path

from excise.errors import InputError


def require_regular_file(path: Path) -> None:
    """Refuse what is not there, and folders, pipes and devices, which reading might wait for, or never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:  # a name that is too long, or has a character that names can't have
        raise InputError(f"{path}: can't be opened ({reason(error)}).") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"{path}: is {what}, not a file; name a file.")


def is_regular_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def reason(error: BaseException) -> str:
    """Why something failed, on one line, whatever the error says."""
    words = getattr(error, "strerror", None) or str(error).strip()
    return str(words).splitlines()[0] if words else type(error).__name__
