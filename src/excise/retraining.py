"""Exact retraining, the truth that unlearning is held against: from fresh weights, without the samples, done once."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.errors import InputError
from excise.inputs import whole
from excise.task import Ids, Task, positions
from excise.training import fit

SECONDS = "__seconds__"  # beside the weights in a kept file


@dataclass(frozen=True)
class Retrained:
    """A model that never saw some samples."""

    model: nn.Module
    seconds: float
    """What its training took, also where it was read from the cache."""
    from_cache: bool


def retrain(task: Task, forget: Ids, *, seed: int, cache: Path | None = None, progress: bool = False) -> Retrained:
    """Train a model from scratch on all samples but these, by ``task.retrain`` or else by ``fit``.

    With a folder ``cache`` the model is kept there under a hash of everything it depends on: data, forgotten samples,
    architecture, recipe and seed. A recipe of your own is known by its name and code, not by what it reads; clear the
    folder after changing such things.
    """
    whole(seed, "seed", 0)
    gone = positions(forget, len(task.train_set))
    file = None if cache is None else cache / f"retrained-{_digest(task, gone, seed)}.safetensors"
    if file is not None and file.is_file():
        return _read(task, file)
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

    Every module with weights of its own must say how they begin: by ``reset_parameters``, as torch's do, or by the
    model's ``_init_weights``, as in Hugging Face's. Buffers such as batch statistics begin anew too.
    """
    new = copy.deepcopy(model)
    own = getattr(new, "_init_weights", None)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for name, module in new.named_modules():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
            elif not own and any(True for _ in module.parameters(recurse=False)):
                raise InputError(
                    f"model has {name or 'itself'} ({type(module).__name__}), which has no reset_parameters(), so it "
                    "can't be trained from scratch: pass retrain= to Task."
                )
            if callable(own):
                own(module)
    return new


def _train(task: Task, ids: Tensor, seed: int, *, progress: bool) -> nn.Module:
    if task.retrain is not None:
        model = task.retrain(ids, seed)
        require_same_architecture(task.model, model, "task.retrain gave a model that")
        return model
    start = replace(task, model=fresh(task.model, seed))
    return fit(start, ids=ids, seed=seed, progress=progress).model


def require_same_architecture(model: nn.Module, other: nn.Module, what: str) -> None:
    """Refuse a model whose weights differ in name or shape."""
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in other.state_dict().items()}
    if mine != theirs:
        differing = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        raise InputError(
            f"{what} is of another architecture: {differing[0]} is {theirs.get(differing[0], 'missing')} there and "
            f"{mine.get(differing[0], 'missing')} in the task's model."
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
    recipe = task.retrain
    parts: list[Any] = [
        hash_of_samples(task),
        sorted(gone.tolist()),
        seed,
        task.weight_decay,
        str(task.model),
        repr([(name, tuple(tensor.shape)) for name, tensor in task.model.state_dict().items()]),
        repr(task.loss),
        "fit" if recipe is None else _code_of(recipe),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _code_of(function: Any) -> str:
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    return repr(
        (getattr(function, "__qualname__", ""), code.co_code.hex() if code else "", getattr(code, "co_consts", ""))
    )


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


def _read(task: Task, file: Path) -> Retrained:
    model = copy.deepcopy(task.model)
    state = load_file(file)
    seconds = float(state.pop(SECONDS))
    model.load_state_dict(state)
    return Retrained(model.eval(), seconds, True)


def _write(model: nn.Module, seconds: float, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    draft = file.with_suffix(f".{os.getpid()}")  # renamed when whole, so that a stopped run leaves no half of a file
    save_file({**state, SECONDS: torch.tensor(seconds, dtype=torch.float64)}, draft)
    draft.replace(file)
