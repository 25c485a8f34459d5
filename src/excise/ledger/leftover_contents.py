"""What a file says by itself: whose weights, trained on what, embeddings of which samples, a report about whom."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from excise.ledger.leftover_known import Known
from excise.ledger.leftovers import ModelVersion
from excise.task.hashing import hash_of_weights
from excise.task.weights import RECORD, TORCH
from excise.task.wrapping import without_prefixes
from excise.training.model_cache import OF_TRACE, TRAINED_ON

OF_EMBEDDINGS = {"hashes", "embeddings", "targets"}
OF_KEPT_MODEL = {"key", "seconds", "took", "losses"}
LARGEST_TEXT = 2**28  # bytes of a report
Seen = tuple[str, int | None, bool | None, str]
"""Kind, version, whether it is stale, and how it was recognised."""


def told_by_content(path: Path, known: Known) -> Seen | None:
    """What is to be known of a file from what is in it; None for one that is none of the ledger's."""
    if path.suffix == ".safetensors":
        return _in_safetensors(path, known)
    if path.suffix in TORCH:
        return _in_checkpoint(path, known)
    return _in_text(path, known) if path.suffix in (".json", ".html") else None


def of_version(version: ModelVersion, known: Known, how: str) -> Seen:
    """A model version, or a copy of one."""
    stale = known.deletes_after(version.version)
    return "model version", version.version, stale, f"{how} of model version {version.version}"


def _by_weights(state: Mapping[str, Tensor], known: Known) -> Seen | None:
    for named in (state, without_prefixes(state, {})):
        version = known.by_weights.get(hash_of_weights(named))
        if version is not None:
            return of_version(version, known, "it has the weights")
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
