"""A run that can be stopped: every step's outcome is kept in a folder, and the same command goes on from there."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import excise
from excise._support import files
from excise._support.progress import Bar
from excise.errors import DataError, ExciseError, InputError, warn
from excise.evidence.text import plain
from excise.reproduce.framework import steps
from excise.reproduce.framework.steps import Outcome

if TYPE_CHECKING:
    from torch import nn

    from excise.training.loop import Fitted

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
        return self._outcome(key, ".json", lambda: plain(make()), steps.values_to_bytes, steps.values_from_bytes)

    def tensors(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The same for what is large: tensors, numbers and words in dictionaries, lists and tuples."""
        found: dict[str, Any] = self._outcome(key, ".pt", make, steps.tensors_to_bytes, steps.tensors_from_bytes)
        return found

    def trained(self, key: str, like: nn.Module, make: Callable[[], Fitted]) -> Fitted:
        """The same for a trained model of an architecture; one that is damaged is trained again."""
        from excise.training.model_cache import KeptModel, read_model, write_model

        file = self._file(key, ".safetensors")
        found = read_model(file, like)
        if found is None:
            fitted, seconds = self._timed(make)
            with keeping_steps():
                write_model(file, KeptModel(fitted, seconds, from_file=False), like)
            self._say(f"{key}: {seconds:.1f} s")
            found = read_model(file, like)
        else:
            self._say(f"{key}: kept")
        if found is None:  # what was written a moment ago
            raise DataError(f"{file} can't be read back; is the disk sound?")
        self._seen[key] = found.seconds
        return found.fitted

    def progress(self, label: str, total: float) -> Bar:
        """A bar for the inside of a long step: ``with run.progress("removing", 1000) as bar: bar.advance(1)``."""
        bar = Bar(enabled=self._bar)
        bar.start(label, total)
        return bar

    def _outcome(
        self,
        key: str,
        ending: str,
        make: Callable[[], Any],
        pack: Callable[[Outcome], bytes],
        unpack: Callable[[bytes, str], Outcome],
    ) -> Any:
        file = self._file(key, ending)
        found = _read(file, key, unpack)
        if found is None:
            value, seconds = self._timed(make)
            _clear_of_link(file)
            write_whole(file, pack(Outcome(key, seconds, value)))
            self._say(f"{key}: {seconds:.1f} s")
            found = _read(file, key, unpack)
        else:
            self._say(f"{key}: kept")
        if found is None:  # what was written a moment ago
            raise DataError(f"{file} can't be read back; is the disk sound?")
        self._seen[key] = found.seconds
        return found.value

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
        file = self._steps / steps.file_name(key, ending)
        if file.exists() and not file.is_file():  # before the step is made, which may take hours
            raise DataError(f"{file} is no file; remove it, and the same command makes this step.")
        return file

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
            with keeping_steps(), files.naming(self._steps):
                self._steps.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(config, indent=2).encode())
            return
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            there = None
        known = isinstance(there, dict)
        differences = _differences(there, config) if known else [f"{file.name} is missing or damaged"]
        if differences:
            raise InputError(
                f"{self.folder} holds another run ({'; '.join(differences)}), and results are not mixed: name another "
                "folder by --out-dir, or throw that run away by --fresh."
            )


def throw_away(folder: Path) -> None:
    """Forget a run; only what runs write is removed."""
    shutil.rmtree(folder / "steps", ignore_errors=True)
    for name in ("result.json", "plot.png", "README.md"):
        with files.naming(folder / name):
            (folder / name).unlink(missing_ok=True)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens."""
    with keeping_steps():
        files.write_whole(file, content)


def _read(file: Path, key: str, unpack: Callable[[bytes, str], Outcome]) -> Outcome | None:
    """What was kept of a step; None if there is no such file, or, with a warning, if it is damaged."""
    if not file.exists() and not file.is_symlink():
        return None
    try:
        if file.is_symlink():
            raise steps.Damaged("it is a link")
        return unpack(file.read_bytes(), key)
    except (OSError, steps.Damaged) as error:
        from excise.training.model_cache import DamagedWarning

        warn(f"{file} is damaged ({error}); this step is made anew.", DamagedWarning)
        return None


def _clear_of_link(file: Path) -> None:
    """Steps are files of the run itself: what a link leads to is someone else's, and is not written over."""
    if file.is_symlink():
        with keeping_steps(), files.naming(file):
            file.unlink()


@contextlib.contextmanager
def keeping_steps() -> Iterator[None]:
    """Where a file could not be written, say that what was complete is kept."""
    try:
        yield
    except InputError as error:
        raise DiskError(
            f"{str(error).removesuffix('.')}; steps that were complete are kept, and the same command goes on from "
            "there once it can be, or name another folder by --out-dir."
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
