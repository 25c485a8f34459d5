"""Finding leftovers that nobody registered: copies of model versions, retrained models, embeddings and reports.

Files are known by their hash, by the hash of the weights in them, and by what excise writes into them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from excise._support.file_hashes import sha256_of_file
from excise._support.reading import is_regular_file, reason
from excise.errors import InputError
from excise.ledger.leftovers import Artefact, ModelVersion, modified_time
from excise.task.hashing import hash_of_weights
from excise.task.task import Task
from excise.task.weights import RECORD, TORCH
from excise.task.wrapping import without_prefixes
from excise.training.model_cache import OF_TRACE, TRAINED_ON

OF_EMBEDDINGS = {"hashes", "embeddings", "targets"}
OF_KEPT_MODEL = {"key", "seconds", "took", "losses"}
LARGEST_TEXT = 2**28  # bytes of a report


@dataclass(frozen=True)
class Known:
    """What the ledger knows, to recognise files by."""

    versions: tuple[ModelVersion, ...] = ()
    artefacts: tuple[Artefact, ...] = ()
    """Those that are registered, of which there may be copies."""
    forgotten: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    """By the hash of a training set (``Fingerprint.ordered``) the positions in it that are forgotten by now; None for a
    set of which nobody can tell, such as one that had rows which were taken away since."""
    contents: frozenset[bytes] = frozenset()
    """SHA-256 of forgotten samples that no retained sample is a twin of (``Task.sample_digests``)."""

    @cached_property
    def by_file(self) -> dict[str, ModelVersion]:
        """Versions by the hash of their file."""
        return {one.file_sha256: one for one in self.versions}

    @cached_property
    def by_weights(self) -> dict[str, ModelVersion]:
        """Versions by the hash of their weights."""
        return {one.weights_sha256: one for one in self.versions}

    @cached_property
    def by_artefact(self) -> dict[str, Artefact]:
        """Registered files by their hash."""
        return {one.sha256: one for one in self.artefacts}

    @cached_property
    def last_deletion(self) -> int:
        """The last version that deleted samples; -1 where none did."""
        return max((one.version for one in self.versions if one.deleted), default=-1)

    def deletes_after(self, version: int | None) -> bool:
        """Whether a version after this one deleted samples; None for one that nobody knows."""
        return self.last_deletion > (-1 if version is None else version)

    @staticmethod
    def of(
        task: Task,
        gone: Iterable[int],
        versions: Iterable[ModelVersion] = (),
        artefacts: Iterable[Artefact] = (),
        earlier: Iterable[str] = (),
    ) -> Known:
        """From a task and the positions that are forgotten in it; ``earlier`` are hashes of its set as it was once."""
        positions = frozenset(int(place) for place in gone)
        digests = [row.tobytes() for row in task.sample_digests]
        retained = {one for place, one in enumerate(digests) if place not in positions}
        sets: dict[str, frozenset[int] | None] = dict.fromkeys(earlier)
        if task.fingerprint.ordered is not None:
            sets[task.fingerprint.ordered] = positions
        contents = frozenset(digests[place] for place in positions) - retained
        return Known(tuple(versions), tuple(artefacts), sets, contents)


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


Seen = tuple[str, int | None, bool | None, str]
"""Kind, version, whether it is stale, and how it was recognised."""


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
        return _of_version(known.by_file[digest], known, "it is the file")
    if digest in known.by_artefact:
        artefact = known.by_artefact[digest]
        stale = known.deletes_after(artefact.version)
        return artefact.kind, artefact.version, stale, "it is a registered file, or a copy of it"
    if path.suffix == ".safetensors":
        return _in_safetensors(path, known)
    if path.suffix in TORCH:
        return _in_checkpoint(path, known)
    return _in_text(path, known) if path.suffix in (".json", ".html") else None


def _of_version(version: ModelVersion, known: Known, how: str) -> Seen:
    stale = known.deletes_after(version.version)
    return "model version", version.version, stale, f"{how} of model version {version.version}"


def _by_weights(state: Mapping[str, Tensor], known: Known) -> Seen | None:
    for named in (state, without_prefixes(state, {})):
        version = known.by_weights.get(hash_of_weights(named))
        if version is not None:
            return _of_version(version, known, "it has the weights")
    return None


def _in_safetensors(path: Path, known: Known) -> Seen | None:
    try:
        with safe_open(path, framework="pt") as opened:
            record, names = opened.metadata() or {}, set(opened.keys())
            tensors = {name: opened.get_tensor(name) for name in names}
    except (
        SafetensorError,
        OSError,
        ValueError,
        RuntimeError,
    ):  # no such file, whatever its name; its hash was compared
        return None
    seen = _by_weights(tensors, known)
    if seen is not None:
        return seen
    if RECORD in record:
        return _by_record(_read(record[RECORD]), "model version", known)
    if names == OF_EMBEDDINGS:
        return _by_contents(tensors["hashes"], known)
    if set(record) >= OF_KEPT_MODEL:
        kind = "gradients" if any(name.startswith(OF_TRACE) for name in names) else "retrained model"
        return _by_training(_read(record.get(TRAINED_ON)), kind, known)
    return None


def _in_checkpoint(path: Path, known: Known) -> Seen | None:
    """Weights in a file of torch, alone or as one of its entries."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception:  # torch raises whatever a file that is none makes it trip over; its hash was compared
        return None
    entries = [content, *(content.values() if isinstance(content, Mapping) else ())]
    for entry in entries:
        if _is_state(entry) and (seen := _by_weights(entry, known)) is not None:
            return seen
    return _by_record(content, "model version", known)  # a session's state_dict


def _is_state(thing: Any) -> bool:
    if not isinstance(thing, Mapping) or not thing:
        return False
    return all(isinstance(key, str) and isinstance(one, Tensor) and _is_dense(one) for key, one in thing.items())


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized


def _in_text(path: Path, known: Known) -> Seen | None:
    """Records of deletions and audits, and pages of such."""
    if path.stat().st_size > LARGEST_TEXT:
        return None
    text = path.read_bytes()
    if path.suffix == ".html":
        sets = [gone for one, gone in known.forgotten.items() if one.encode() in text]
        stale = True if any(sets) else None if None in sets else False
        return ("report", None, stale, "it is a page about the training set") if sets else None
    record = _read(text)
    if isinstance(record, Mapping) and "train_hash" in record:
        record = {**record, "fingerprint": {"ordered": record["train_hash"]}}
    return _by_record(record, "report", known)


def _by_record(record: Any, kind: str, known: Known) -> Seen | None:
    """A record of a deletion: a model lacks what it lists, a report was computed with it."""
    fingerprint = record.get("fingerprint") if isinstance(record, Mapping) else None
    ordered = fingerprint.get("ordered") if isinstance(fingerprint, Mapping) else None
    if not isinstance(ordered, str) or ordered not in known.forgotten:
        return None
    now, listed = known.forgotten[ordered], _positions(record.get("ids" if kind == "report" else "forgotten"))
    if now is None or listed is None:
        return kind, None, None, "its record is of the training set as it was once, or does not say of which samples"
    if kind == "report":
        return kind, None, bool(listed & now), f"its record is about {len(listed & now)} samples that are forgotten"
    return kind, None, not now <= listed, f"its record lacks {len(now - listed)} samples that are forgotten"


def _by_training(trained_on: Any, kind: str, known: Known) -> Seen | None:
    """A kept model, by what it says that it was trained on; one of another training set is none of ours."""
    if not isinstance(trained_on, Mapping):
        return kind, None, None, "it is a kept model of an earlier version, which does not say what it was trained on"
    ordered, left_out = trained_on.get("train_set"), _positions(trained_on.get("left_out"))
    if not isinstance(ordered, str) or ordered not in known.forgotten:
        return None
    now = known.forgotten[ordered]
    if now is None or left_out is None:
        return kind, None, None, "it was trained on the training set as it was once"
    return kind, None, not now <= left_out, f"it was trained with {len(now - left_out)} samples that are forgotten"


def _by_contents(hashes: Tensor, known: Known) -> Seen | None:
    rows = {bytes(row) for row in hashes.numpy()} if hashes.ndim == 2 and hashes.dtype == torch.uint8 else set()
    count = len(rows & known.contents)
    return ("activations", None, True, f"it has embeddings of {count} samples that are forgotten") if count else None


def _positions(listed: Any) -> set[int] | None:
    fits = isinstance(listed, list | tuple) and all(isinstance(one, int) for one in listed)
    return set(listed) if fits else None


def _read(text: str | bytes | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
