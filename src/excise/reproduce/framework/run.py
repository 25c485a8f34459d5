"""A run that can be stopped: every step's outcome is kept in a folder, and the same command goes on from there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

import excise
from excise.audit_table import plain
from excise.errors import DataError, ExciseError, InputError
from excise.progress import Bar

S = TypeVar("S")
Say = Callable[[str], None]


class DiskError(ExciseError, OSError):
    """A result could not be written; what was complete before is intact."""


class Run(Generic[S]):
    """One run of an experiment in a folder of its own.

    Args:
        folder: Where outcomes go; made if it is not there. One that holds a run of another version, other settings,
            another seed or other data is refused.
        name: The experiment's.
        settings: A frozen dataclass of plain values.
        data_dir: Where the data sets lie.
        seed: For everything random.
        say: What to do with a line about progress; None for nothing.
        bar: Whether to show a bar inside long steps.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: S,
        *,
        data_dir: Path,
        seed: int = 0,
        say: Say | None = None,
        bar: bool = False,
    ) -> None:
        self.folder, self.settings, self.data_dir, self.seed = folder, settings, data_dir, seed
        self._say, self._bar = say or (lambda _: None), bar
        self._seen: dict[str, float] = {}
        self._busy = False
        self._steps = folder / "steps"
        self._resume(name)

    @property
    def seconds(self) -> float:
        """What the steps took, those of earlier sittings included."""
        return sum(self._seen.values())

    def step(self, key: str, make: Callable[[], Any]) -> Any:
        """The outcome of one step, plain values: from the folder if it is there, or else made now and kept.

        What is returned is always what was read back, so that a run that was stopped ends like one that was not.
        """
        file = self._file(key, ".json")
        if not file.exists():
            value, seconds = self._timed(lambda: plain(make()))
            record = json.dumps({"key": key, "seconds": seconds, "value": value}, allow_nan=False)
            write_whole(file, record.encode())
            self._say(f"{key}: {seconds:.1f} s")
        else:
            self._say(f"{key}: kept")
        with reading(file):
            record = json.loads(file.read_text())
            self._seen[key] = record["seconds"]
            return record["value"]

    def tensors(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The same for what is large: tensors, numbers and words in dictionaries, lists and tuples."""
        import torch

        file = self._file(key, ".pt")
        if not file.exists():
            value, seconds = self._timed(make)
            content = io.BytesIO()
            torch.save({"key": key, "seconds": seconds, "value": value}, content)
            write_whole(file, content.getvalue())
            self._say(f"{key}: {seconds:.1f} s")
        else:
            self._say(f"{key}: kept")
        with reading(file):
            record = torch.load(file, weights_only=True)
            self._seen[key] = record["seconds"]
            outcome: dict[str, Any] = record["value"]
            return outcome

    def progress(self, label: str, total: float) -> Bar:
        """A bar for the inside of a long step: ``with run.progress("removing", 1000) as bar: bar.advance(1)``."""
        bar = Bar(enabled=self._bar)
        bar.start(label, total)
        return bar

    def _timed(self, make: Callable[[], Any]) -> tuple[Any, float]:
        if self._busy:  # its time would count twice, and a stop would lose both
            raise ValueError("a step can't be made inside another")
        self._busy, began = True, time.perf_counter()
        try:
            return make(), time.perf_counter() - began
        finally:
            self._busy = False

    def _file(self, key: str, ending: str) -> Path:
        if key in self._seen:
            raise ValueError(f"the step {key!r} is there twice")
        self._seen[key] = 0.0
        return self._steps / (re.sub(r"[^A-Za-z0-9.]+", "-", key).strip("-") + ending)

    def _resume(self, name: str) -> None:
        config = {
            "experiment": name,
            "excise": excise.__version__,
            "settings": plain(asdict(self.settings)),  # type: ignore[call-overload]
            "seed": self.seed,
            "data": str(self.data_dir.resolve()),
        }
        file = self._steps / "run.json"
        if not any(other != file for other in self._steps.glob("[!.]*")):  # a run without a step binds no one
            with naming(self._steps):
                self._steps.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(config, indent=2).encode())
            return
        try:
            there = json.loads(file.read_text())
        except ValueError:
            there = {}
        differences = _differences(there, config)
        if differences:
            raise InputError(
                f"{self.folder} holds another run ({'; '.join(differences)}), and results are not mixed: name another "
                "folder by --out-dir, or throw that run away by --fresh."
            )


def throw_away(folder: Path) -> None:
    """Forget a run; only what runs write is removed."""
    shutil.rmtree(folder / "steps", ignore_errors=True)
    for name in ("result.json", "plot.png", "README.md"):
        (folder / name).unlink(missing_ok=True)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with naming(file):
            with draft.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(file: Path) -> Any:
    """Say which step is damaged, and what to do."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, pickle.UnpicklingError):
        raise DataError(
            f"{file} is damaged; delete it, and the same command makes this step again (or --fresh all of them)."
        ) from None


@contextlib.contextmanager
def naming(file: Path) -> Any:
    """Say which file could not be written, and that what was complete is kept."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{file}: could not be written ({error.strerror}); steps that were complete are kept, and the same "
            "command goes on from there once it can be, or name another folder by --out-dir."
        ) from None


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What two configurations differ in, in words."""
    found = []
    for name in here:
        old, new = there.get(name), here[name]
        if isinstance(new, dict) and isinstance(old, dict):
            found += _differences(old, new)
        elif old != new:
            found.append(f"{name} {old!r} there, {new!r} here")
    return found
