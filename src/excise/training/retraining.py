"""Exact retraining, the truth that unlearning is held against: from fresh weights, without the samples, done once."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.errors import InputError, warn
from excise.inputs import whole
from excise.task import Ids, Task, positions
from excise.training import fit
from excise.weights import portable_state

KEPT_IN = Path("~/.cache/excise/retrained")
SECONDS = "__seconds__"  # beside the weights in a kept file
PLAIN = bool | int | float | complex | str | bytes | Path | None


class NotKeptWarning(UserWarning):
    """A retrained model could not be written to the cache, so that it will have to be trained again."""


@dataclass(frozen=True)
class Retrained:
    """A model that never saw some samples."""

    model: nn.Module
    seconds: float
    """What its training took, also where it was read from the cache."""
    from_cache: bool


def retrain(
    task: Task, forget: Ids, *, seed: int, cache: str | Path | None = None, progress: bool = False
) -> Retrained:
    """Train a model from scratch on all samples but these, by ``task.retrain`` or else by ``fit``.

    With a folder ``cache`` the model is kept there under a hash of everything it depends on: data, forgotten samples,
    architecture, recipe and seed. A recipe of your own is known by its code, the options it is given and the plain
    values (numbers, text) it reads, not by the functions it calls; clear the folder after changing these. A recipe
    finds the global randomness of torch, numpy and Python seeded, and leaves no trace in it.
    """
    whole(seed, "seed", 0)
    gone = positions(forget, len(task.train_set))
    file = None if cache is None else Path(cache).expanduser() / f"retrained-{_digest(task, gone, seed)}.safetensors"
    found = None if file is None else _read(task, file)
    if found is not None:
        return found
    begin = time.perf_counter()
    model = _train(task, kept(task, gone), seed, progress=progress)
    seconds = time.perf_counter() - begin
    if file is not None:
        _write(model, seconds, file)
    return Retrained(model.eval(), seconds, False)


def kept(task: Task, forget: Ids) -> Tensor:
    """Positions of all samples but these."""
    keep = torch.ones(len(task.train_set), dtype=torch.bool)
    keep[positions(forget, len(task.train_set))] = False
    return keep.nonzero().flatten()


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """A copy of the model with new random weights, as when it was made; the global random state is left alone.

    Every module with weights of its own must say how they begin: by ``reset_parameters``, as torch's do, or by an
    ``_init_weights`` of a model that it is part of, as in Hugging Face's. Buffers such as batch statistics begin anew
    too. What is frozen was not learned from the samples, and stays.

    >>> layer = fresh(nn.BatchNorm1d(1).requires_grad_(True), seed=0)
    >>> layer.weight.item(), layer.running_mean.item()
    (1.0, 0.0)
    """
    new = copy.deepcopy(model)
    with seeded(seed), torch.no_grad():
        for weight in new.parameters():
            if weight.requires_grad:
                weight.fill_(torch.nan)  # what is still so in the end nobody has set
        for name, module in reversed(list(new.named_modules())):  # parts before the whole, as when it was made
            mine = list(module.parameters(recurse=False))
            if not mine or any(weight.requires_grad for weight in mine):
                _reset(new, name, module)
        for weight, old in zip(new.parameters(), model.parameters(), strict=True):
            if not weight.requires_grad:
                weight.copy_(old)
    for name, weight in new.named_parameters():
        if weight.isnan().any():
            owner = new.get_submodule(name.rpartition(".")[0])
            raise InputError(
                f"model has {name} (of a {type(owner).__name__}), which no reset_parameters() sets anew, so it can't "
                "be trained from scratch: pass retrain= to Task."
            )
    return new


def _reset(model: nn.Module, name: str, module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()
    parts = name.split(".") if name else []
    for count in range(len(parts), -1, -1):  # the innermost model around it that knows
        own = getattr(model.get_submodule(".".join(parts[:count])), "_init_weights", None)
        if callable(own):
            own(module)
            return


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global randomness of torch, numpy and Python from the seed inside; afterwards as it was before."""
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - what a recipe or a data set may use
            random.seed(seed)
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)  # noqa: NPY002


def _train(task: Task, ids: Tensor, seed: int, *, progress: bool) -> nn.Module:
    if task.retrain is not None:
        with seeded(seed):
            model = task.retrain(ids, seed)
        require_same_architecture(task.model, model, "task.retrain gave a model that")
        if model is task.model:
            raise InputError("task.retrain gave the task's own model back; it must make a new one and train that.")
        return model
    start = replace(task, model=fresh(task.model, seed))
    return fit(start, ids=ids, seed=seed, progress=progress).model


def require_same_architecture(model: nn.Module, other: nn.Module, what: str) -> None:
    """Refuse a model whose weights differ in name or shape."""
    if not isinstance(other, nn.Module):
        raise InputError(f"{what} is no torch.nn.Module, but a {type(other).__name__}; pass a trained model.")
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in other.state_dict().items()}
    if mine != theirs:
        differing = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        raise InputError(
            f"{what} is of another architecture: {differing[0]} is {theirs.get(differing[0], 'missing')} there and "
            f"{mine.get(differing[0], 'missing')} in the task's model; pass one that is built as task.model."
        )


def hash_of_model(model: nn.Module) -> str:
    """SHA-256 of a model's weights, names and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        _update(digest, name)
        _update(digest, tensor)
    return digest.hexdigest()


def hash_of_samples(task: Task, ids: Ids | None = None) -> str:
    """SHA-256 of samples of the training set, in their order; None for all."""
    digest = hashlib.sha256()
    chosen = torch.arange(len(task.train_set)) if ids is None else torch.as_tensor(ids, dtype=torch.long)
    for batch in task.batches(chosen):
        _update(digest, batch)
    return digest.hexdigest()


def _digest(task: Task, gone: Tensor, seed: int) -> str:
    frozen = {name: weight for name, weight in task.model.named_parameters() if not weight.requires_grad}
    parts: list[Any] = [
        hash_of_samples(task),
        sorted(gone.tolist()),
        int(seed),
        task.weight_decay,
        str(task.model),
        repr([(name, tuple(tensor.shape)) for name, tensor in task.model.state_dict().items()]),
        _described(task.loss),
        _described(task.forward),
        ["fit", str(inspect.signature(fit)), _described(frozen)] if task.retrain is None else _described(task.retrain),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _described(thing: Any) -> Any:
    """What tells a recipe or loss from another, the same in every process: code, options and plain values read."""
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, Tensor):
        digest = hashlib.sha256()
        _update(digest, thing)
        return digest.hexdigest()
    if isinstance(thing, list | tuple):
        return [_described(one) for one in thing]
    if isinstance(thing, set | frozenset):
        return sorted(repr(_described(one)) for one in thing)
    if isinstance(thing, Mapping):
        return sorted((str(key), repr(_described(value))) for key, value in thing.items())
    if isinstance(thing, CodeType):
        return _described((thing.co_code, thing.co_names, thing.co_consts))
    if isinstance(thing, functools.partial):
        return _described((thing.func, thing.args, thing.keywords))
    owner = getattr(thing, "__self__", thing)  # of a method
    state = hash_of_model(owner) if isinstance(owner, nn.Module) else ""
    return [
        getattr(thing, "__qualname__", type(thing).__qualname__),
        state,
        _described(_plain(getattr(owner, "__dict__", {}))),
        _described_function(_function_of(thing)),
    ]


def _function_of(thing: Any) -> Any:
    """The Python function that is run when the thing is called, if there is one."""
    if isinstance(thing, nn.Module):
        return type(thing).forward
    function = thing if hasattr(thing, "__code__") else type(thing).__call__
    return function if hasattr(function, "__code__") else None


def _described_function(function: Any) -> Any:
    if function is None:
        return None
    code, known = function.__code__, function.__globals__
    read = {name: known[name] for name in _names_in(code) if name in known}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            read[name] = cell.cell_contents
    return _described((code, function.__defaults__, function.__kwdefaults__, _plain(read)))


def _names_in(code: CodeType) -> set[str]:
    """Names that a function reads, also in the functions inside it."""
    inner = (_names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, PLAIN)}


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(repr((value.dtype, tuple(value.shape))).encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            _update(digest, str(key))
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _update(digest, item)
    else:
        digest.update(repr(value).encode())


def _read(task: Task, file: Path) -> Retrained | None:
    """The model that was kept; None if there is none, or if the file is damaged."""
    if not file.is_file():
        return None
    model = copy.deepcopy(task.model)
    try:
        state = load_file(file)
        seconds = float(state.pop(SECONDS))
        model.load_state_dict(state)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    return Retrained(model.eval(), seconds, True)


def _write(model: nn.Module, seconds: float, file: Path) -> None:
    state = portable_state(model)
    draft = file.with_suffix(f".{os.getpid()}")  # renamed when whole, so that a stopped run leaves no half of a file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({**state, SECONDS: torch.tensor(seconds, dtype=torch.float64)}, draft)
        draft.replace(file)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        warn(f"cache={str(file.parent)!r} can't keep the retrained model ({error}); pass another.", NotKeptWarning)
