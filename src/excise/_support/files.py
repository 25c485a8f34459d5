"""One way to write a file: whole or not at all, whatever happens on the way."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from excise._support.drafts import draft_folder
from excise.errors import InputError


def write_whole(path: str | Path, content: bytes | str, *, mode: int | None = None) -> None:
    """Write a file so that a reader, or the next run after a crash, finds the old one or the new one, never a part.

    The content goes into a new file, is forced to the disk, and takes the name in one step. Text is UTF-8. A mode, such
    as 0o600 for a secret, is the file's from the first byte on.
    """
    with whole_file(path, mode=mode) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(path: str | Path, *, mode: int | None = None) -> Iterator[Path]:
    """A name to write to; what is there at the end becomes the file, and after an error nothing does.

    It is the file's own name, in a folder beside it: some libraries read the format from the ending, and what else they
    write there is gone afterwards. A file that is replaced keeps its permissions, and a link stays a link.
    """
    if "\0" in str(path):
        raise InputError(f"{path}: could not be written (a name can't have the character NUL).")
    with naming(Path(path)):
        target = _place(Path(path))
        with draft_folder(target.parent) as folder:
            draft = folder / target.name
            draft.touch(0o666 if mode is None else mode, exist_ok=False)
            final = mode if mode is not None else stat.S_IMODE((target if target.exists() else draft).stat().st_mode)
            yield draft
            draft.chmod(final)  # some libraries write a new file in place of the draft, for the owner's eyes only
            force_to_disk(draft)
            draft.replace(target)
            force_to_disk(target.parent)


def write_json(path: str | Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON that every reader takes: without NaN, which JSON has not."""
    write_whole(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_figure(path: str | Path, figure: Any, *, dpi: int = 150) -> None:
    """Write a figure of matplotlib, in the format that the file's ending names."""
    ending = Path(path).suffix.removeprefix(".").lower()
    if not ending:
        raise InputError(f"{path}: the name of the plot needs an ending such as .png, .svg or .pdf.")
    if ending == "pgf":
        raise InputError(f"{path}: a .pgf plot needs LaTeX, and can't be written; name a .png, .svg or .pdf file.")
    try:
        with whole_file(path) as draft:
            # told the format, since to a name such as "..png", in which it sees no ending, matplotlib adds one
            figure.savefig(draft, dpi=dpi, format=ending)
    except InputError:
        raise
    except ValueError as error:  # an ending that matplotlib does not know
        raise InputError(f"{path}: the plot could not be written ({error}).") from None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the disk."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise InputError(f"{path}: could not be written ({reason}).") from None


def _place(path: Path) -> Path:
    """Where the file is to be, links followed; only a file can be replaced by one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path.resolve()
    except ValueError:  # a NUL in it
        raise InputError(f"{str(path)!r}: no file can have this name.") from None
    if stat.S_ISREG(mode):
        return path.resolve()
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
    raise InputError(f"{path}: could not be written (it is {what}); name a file.")


def force_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
