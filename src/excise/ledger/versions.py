"""Model versions: weights in files that are written whole, named by their hash, and read back only unchanged."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from excise._support.file_hashes import sha256_of_file
from excise._support.files import force_to_disk, naming
from excise.errors import InputError
from excise.ledger.schema import DELETED, LEDGERS, VERSIONS
from excise.task.hashing import hash_of_model
from excise.task.weights import load_weights, save_weights

if TYPE_CHECKING:
    from torch import nn

    from excise.ledger.ledger import Ledger

LEAST_PREFIX = 6


@dataclass(frozen=True)
class Version:
    """A state of the model, and how it came about."""

    version: str
    """SHA-256 of the weights: their names, shapes and values."""
    number: int
    """0 for the model as it was trained."""
    parent: str | None
    file_sha256: str
    working_sha256: str | None
    """Of the weights before noise, where there is noise; later requests go on from these."""
    made_time: str
    method: str
    retained_count: int
    retained_root: str
    epsilon: float | None
    delta: float | None
    record: dict[str, Any]
    """Settings, figures, what was said."""
    purged_time: str | None
    """When its file was removed; None where it is held."""


def head_version(connection: Connection) -> Version | None:
    """The model as it is now; None before the first request is processed."""
    name = connection.execute(select(LEDGERS.c.head_version)).scalar()
    return None if name is None else find_version(connection, name)


def find_version(connection: Connection, name: str) -> Version:
    """A version by its hash, or by the beginning of it."""
    if not isinstance(name, str) or len(name) < LEAST_PREFIX or set(name) - set("0123456789abcdef"):
        raise InputError(f"version must be the first {LEAST_PREFIX} digits of its hash, or more, not {name!r:.80}.")
    query = select(VERSIONS).where(VERSIONS.c.version.like(name + "%")).limit(2)
    rows = connection.execute(query).mappings().all()
    if not rows:
        raise InputError(f"the ledger has no model version {name}; excise requests log shows all.")
    if len(rows) > 1:
        raise InputError(f"several versions begin with {name}; give more digits.")
    return _version_of(rows[0])


def all_versions(connection: Connection) -> Iterator[Version]:
    """Every version, the first one first."""
    for row in connection.execute(select(VERSIONS).order_by(VERSIONS.c.number)).mappings():
        yield _version_of(row)


def deleted_since(connection: Connection, number: int | None, last: int | None = None) -> list[bytes]:
    """The leaves of all samples that versions after this one deleted, up to a last one; None for no bound."""
    query = select(DELETED.c.leaf).join(VERSIONS, VERSIONS.c.version == DELETED.c.version)
    later = query.where(VERSIONS.c.number > (-1 if number is None else number))
    if last is not None:
        later = later.where(VERSIONS.c.number <= last)
    return [bytes.fromhex(leaf) for leaf in connection.execute(later).scalars()]


def _version_of(row: Any) -> Version:
    return Version(**{**row, "record": json.loads(row["record"])})


@dataclass(frozen=True)
class ModelFiles:
    """The files of a ledger's model versions."""

    folder: Path
    ledger_id: str

    @classmethod
    def of(cls, ledger: Ledger) -> ModelFiles:
        """Those of a ledger."""
        return cls(ledger.folder / "models", ledger.id)

    def path(self, version: str) -> Path:
        """Where a version's weights are."""
        return self.folder / f"{version}.safetensors"

    def working_path(self, version: str) -> Path:
        """Where its weights before noise are, which are as secret as the data."""
        return self.folder / "secret" / f"{version}.safetensors"

    def write(self, model: nn.Module, *, working: nn.Module | None = None) -> tuple[str, str, str | None]:
        """Write a version, to the disk; gives its name and the hashes of its files.

        The same weights give the same file, so that a run that was killed after it can write it again.
        """
        name = hash_of_model(model)
        file = self._write(model, self.path(name), name)
        secret = None if working is None else self._write(working, self.working_path(name), name)
        return name, file, secret

    def _write(self, model: nn.Module, path: Path, name: str) -> str:
        with naming(path):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                force_to_disk(path.parent.parent)  # or a loss of power takes the folder, with what is in it
        save_weights(model, path, record={"ledger": self.ledger_id, "version": name})
        with naming(path):
            path.chmod(0o600)
        return sha256_of_file(path)

    def read(self, version: Version, like: nn.Module, *, working: bool = False) -> nn.Module:
        """A copy of the model with a version's weights; an error where the file is not what was written."""
        path, expected = self.path(version.version), version.file_sha256
        if working and version.working_sha256 is not None:
            path, expected = self.working_path(version.version), version.working_sha256
        if not path.exists():
            gone = f"was purged on {version.purged_time}" if version.purged_time else "is missing; restore it"
            raise InputError(f"{path.name}: the file of model version {version.number} {gone}.")
        if sha256_of_file(path) != expected:
            raise InputError(
                f"{path.name}: is not the file that the ledger has as model version {version.number}; it was altered "
                "or damaged. Restore it from a backup: nothing is built on it."
            )
        model = copy.deepcopy(like)
        load_weights(model, path)
        return model

    def sweep(self, known: set[str]) -> list[Path]:
        """Put aside files of versions that were never committed, which a killed run left; gives where they were.

        Only whoever has the turn may: others write no model files. They are not removed at once, since a database that
        was restored from an old backup does not know its later versions either; ``purge`` removes them by their date.
        """
        folders = (self.folder, self.folder / "secret")
        left = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
        strays = [path for path in left if path.stem not in known]
        for path in strays:
            with naming(path), contextlib.suppress(FileNotFoundError):
                self.strays.mkdir(exist_ok=True, mode=0o700)
                path.replace(self.strays / path.name)
        return strays

    @property
    def strays(self) -> Path:
        """Where files go that no version has."""
        return self.folder / "strays"
