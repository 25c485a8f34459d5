"""Hashes of models, batches and recipes: the same in every process, other for what differs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

OF_NUMPY = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)  # the same bytes, in fewer steps
DEEPEST = 4  # options within options that are told
PLAIN = bool | int | float | complex | str | bytes | Path | None


def hash_of_model(model: nn.Module) -> str:
    """SHA-256 of a model's weights, names and shapes."""
    return hash_of_weights(model.state_dict())


def hash_of_weights(state: Mapping[str, Tensor]) -> str:
    """The same of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        update(digest, name)
        update(digest, tensor)
    return digest.hexdigest()


def described(thing: Any) -> Any:
    """What tells a recipe or loss from another, the same in every process: code, options and plain values read."""
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, Tensor):
        digest = hashlib.sha256()
        update(digest, thing)
        return digest.hexdigest()
    if isinstance(thing, list | tuple):
        return [described(one) for one in thing]
    if isinstance(thing, set | frozenset):
        return sorted(repr(described(one)) for one in thing)
    if isinstance(thing, Mapping):
        return sorted((str(key), repr(described(value))) for key, value in thing.items())
    if isinstance(thing, CodeType):
        return described((thing.co_code, thing.co_names, thing.co_consts))
    if isinstance(thing, functools.partial):
        return described((thing.func, thing.args, thing.keywords))
    owner = getattr(thing, "__self__", thing)  # of a method
    state = hash_of_model(owner) if isinstance(owner, nn.Module) else ""
    return [
        getattr(thing, "__qualname__", type(thing).__qualname__),
        state,
        described(_plain(getattr(owner, "__dict__", {}))),
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
    return described((code, function.__defaults__, function.__kwdefaults__, _plain(read)))


def _names_in(code: CodeType) -> set[str]:
    """Names that a function reads, also in the functions inside it."""
    inner = (_names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _plain(values: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    # a list is most often one that a recipe writes down in what it did
    told = {name: _options(value, depth) for name, value in values.items() if depth or not isinstance(value, list)}
    return {name: value for name, value in told.items() if _is_plain(value)}


def _options(value: Any, depth: int) -> Any:
    """Of an object that holds options, such as a dataclass or parsed arguments, those that are plain."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif isinstance(value, SimpleNamespace | Namespace):
        held = vars(value)
    else:
        return value
    return _plain(held, depth + 1) if depth < DEEPEST else None


def _is_plain(value: Any) -> bool:
    """Whether a value says by itself what it is: numbers, text, tensors, and collections of these."""
    if isinstance(value, Mapping):
        return all(_is_plain(one) for one in (*value.keys(), *value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN | Tensor)


@functools.lru_cache(maxsize=1024)
def _kind(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return repr((dtype, tuple(shape))).encode()


def update(digest: Any, value: Any) -> None:
    """Feed a batch, or any part of one, into a hash."""
    if isinstance(value, Tensor):
        digest.update(_kind(value.dtype, value.shape))
        plain = value.detach().cpu()
        if plain.dtype in OF_NUMPY:
            digest.update(plain.numpy().tobytes())
        else:
            digest.update(plain.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            update(digest, str(key))
            update(digest, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            update(digest, item)
    else:
        digest.update(repr(value).encode())
