"""Trained models in files: each made once, under a name that changes with everything it depends on."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from excise._support.files import naming, whole_file
from excise.errors import InputError, warn
from excise.task.hashing import described, update
from excise.task.hooks import exclusive
from excise.task.parameters import trained_parameters
from excise.task.task import Task
from excise.task.weights import portable_state
from excise.training.loop import Fitted
from excise.training.trace import GradientTrace, Named

OF_TRACE = ("__gradients_0__.", "__gradients_1__.", "__parameters_0__.", "__parameters_1__.")
"""What the names of a trace's tensors begin with, beside the weights in a file."""
SEAL = "sha256"  # of all else in a file
TRAINED_ON = "trained_on"
"""In a file's record: ``{"train_set": hash, "left_out": positions}``, so that it is known of which samples it knows."""


class NotKeptWarning(UserWarning):
    """A trained model could not be written to its file, so that it will have to be trained again."""


class DamagedWarning(UserWarning):
    """A file does not hold the model that it should, which is trained again."""


@dataclass(frozen=True, eq=False)
class KeptModel:
    """A trained model, made now or before."""

    fitted: Fitted
    seconds: float
    """What making it took, also where it was read from a file."""
    from_file: bool
    threads: int | None = None
    """Of torch, with which it was made, since sums depend on their number; None where that is not known."""


def content_key(task: Task, *parts: Any) -> str | None:
    """A hash of the task, of its model the architecture alone, and of what else a trained model depends on.

    It is None for data that give other values at each reading, which can't be recognised.
    """
    if task.fingerprint.ordered is None:
        return None
    everything: list[Any] = [
        task.fingerprint.ordered,
        task.weight_decay,
        str(task.model),
        [(name, tuple(tensor.shape)) for name, tensor in task.model.state_dict().items()],
        described(task.loss if task.weighting is None else ["weights of samples", task.loss_module]),
        described(task.forward),
        *parts,
    ]
    return hashlib.sha256(repr(everything).encode()).hexdigest()[:24]


def kept_model(
    file: Path | None, like: nn.Module, make: Callable[[], Fitted], *, trained_on: Mapping[str, Any] | None = None
) -> KeptModel:
    """The model from its file, or else made now and kept there; with None for the file, just made.

    Args:
        file: Its name must change with what the model depends on, as by ``content_key``.
        like: A model of the same architecture, on the device that is wanted.
        make: Trains the model.
        trained_on: The training set, and what was left out of it, for the file's record (see ``TRAINED_ON``).
    """
    found = None if file is None else read_model(file, like)
    if found is not None:
        return found
    began = time.perf_counter()
    fitted = make()
    made = KeptModel(fitted, time.perf_counter() - began, from_file=False, threads=torch.get_num_threads())
    if file is not None:
        keep(file, made, like, trained_on=trained_on)
    return made


def keep(file: Path, made: KeptModel, like: nn.Module, *, trained_on: Mapping[str, Any] | None = None) -> None:
    """Write a model to its file, with a warning where that can't be."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_model(file, made, like, trained_on=trained_on)
    except (OSError, ValueError) as error:  # also where the model itself is not sound
        reason = str(error).rstrip(".")
        warn(
            f"cache={str(file.parent)!r} can't keep the trained model ({reason}); it will be trained again next "
            "time, unless you pass a folder that can be written.",
            NotKeptWarning,
        )


def read_model(file: Path, like: nn.Module) -> KeptModel | None:
    """What was kept; None if there is no such file, or, with a warning, if it is damaged."""
    if not file.exists() and not file.is_symlink():
        return None
    try:
        if file.is_symlink() or not file.is_file():
            raise ValueError("it is a link" if file.is_symlink() else "it is no file")
        with safe_open(file, framework="pt") as opened:
            record = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        _require_seal(tensors, record, file)
        seconds, took, losses = (json.loads(record[name]) for name in ("seconds", "took", "losses"))
        if not (0 <= seconds < math.inf and 0 <= took < math.inf):
            raise ValueError(f"it took {took!r} s, {seconds!r} s of them for training")
        trace = _trace_in(tensors, like)
        _require_sound(tensors, like)
        with exclusive(like):
            model = copy.deepcopy(like)
        model.load_state_dict(tensors)
        fitted = Fitted(model.eval(), tuple(map(float, losses)), float(seconds), trace)
        threads = json.loads(record.get("threads", "null"))
        return KeptModel(fitted, float(took), from_file=True, threads=None if threads is None else int(threads))
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        warn(f"{file} is damaged ({type(error).__name__}: {reason}); its model is trained anew.", DamagedWarning)
        return None


def write_model(file: Path, made: KeptModel, like: nn.Module, *, trained_on: Mapping[str, Any] | None = None) -> None:
    """Write the model, its losses and its trace; what can't be written is an InputError."""
    fitted, trace = made.fitted, made.fitted.trace
    tensors = portable_state(fitted.model)
    _require_sound(tensors, like)
    if trace is not None:
        for beginning, named in zip(OF_TRACE, (*trace.gradients, *trace.parameters), strict=True):
            tensors |= {beginning + name: tensor.contiguous().clone() for name, tensor in named.items()}
    values: dict[str, Any] = {
        "key": file.name,
        "seconds": fitted.seconds,
        "took": made.seconds,
        "losses": fitted.losses,
    }
    values |= {} if made.threads is None else {"threads": made.threads}
    if trained_on is not None:
        values[TRAINED_ON] = dict(trained_on)
    record = {name: json.dumps(value) for name, value in values.items()}
    if file.is_symlink():
        with naming(file):
            file.unlink()  # what it leads to is someone else's, and is not written over
    try:
        with whole_file(file) as draft:
            save_file(tensors, draft, record | {SEAL: _hash_of_content(tensors, record)})
    except SafetensorError as error:
        raise InputError(f"{file}: could not be written ({error}).") from None


def _hash_of_content(tensors: Mapping[str, Tensor], record: Mapping[str, str]) -> str:
    """Of all that is in a file; it guards against accidents, not against who writes a file and its hash anew."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        update(digest, name)
        update(digest, tensor)
    return digest.hexdigest()


def _require_seal(tensors: Mapping[str, Tensor], record: Mapping[str, str], file: Path) -> None:
    """Refuse content that is not what was written under this name."""
    rest = {name: value for name, value in record.items() if name != SEAL}
    if record.get(SEAL) != _hash_of_content(tensors, rest):
        raise ValueError("its hash is that of another content")
    if json.loads(record["key"]) != file.name:
        raise ValueError(f"it was written as {json.loads(record['key'])}")


def _trace_in(tensors: dict[str, Tensor], like: nn.Module) -> GradientTrace | None:
    """The trace among a file's tensors, which are taken out."""
    parts: list[Named] = [
        {name.removeprefix(beginning): tensors.pop(name) for name in list(tensors) if name.startswith(beginning)}
        for beginning in OF_TRACE
    ]
    if not any(parts):
        return None
    weights = trained_parameters(like)
    in_order = [{name: part[name] for name in weights} for part in parts]  # as safetensors does not keep it
    for part in in_order:
        _require_shapes(part, weights)
    return GradientTrace(gradients=(in_order[0], in_order[1]), parameters=(in_order[2], in_order[3]))


def _require_sound(tensors: Mapping[str, Tensor], like: nn.Module) -> None:
    """Refuse other names, shapes and types, and values that are not finite, which a mask of the model itself may be."""
    wanted = like.state_dict()
    _require_shapes(tensors, wanted)
    for name, tensor in tensors.items():
        if tensor.dtype != wanted[name].dtype:
            raise ValueError(f"{name} is of {tensor.dtype}, not {wanted[name].dtype}.")
        if not tensor.isfinite().all() and wanted[name].isfinite().all():
            raise ValueError(f"{name} has values that are not finite.")


def _require_shapes(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    differing = tensors.keys() ^ wanted.keys()
    if differing:
        raise ValueError(f"{min(differing)} is {'missing' if min(differing) in wanted else 'unknown'}.")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}.")
