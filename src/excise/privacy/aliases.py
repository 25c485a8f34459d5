"""Is the memory of the trained weights used under another name? Then the model depends on them in ways unseen."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from excise.task.task import Task

MOST_OBJECTS = 300_000
_PROGRAM = (type, types.ModuleType, types.CodeType, types.FrameType, str, bytes, int, float)


def doubt_of_aliases(task: Task, model: nn.Module, weights: Iterable[Tensor]) -> str | None:
    """What speaks against the weights being used by their layer alone: other tensors in their memory.

    A copy of the model does not share them, so that no experiment with one would show it.
    """
    own = list(weights)
    memory = memory_of(own)
    named = {id(one) for one in own} | {id(one.grad) for one in own}
    roots = [model, task.forward, task.collate, *(type(one).forward for one in model.modules() if not _of_torch(one))]
    for count, one in enumerate(_reachable(roots)):
        if count > MOST_OBJECTS:
            return "too much is reachable from the model to see whether its weights are used under other names"
        if id(one) not in named and is_within(one, memory):
            return "the trained weights are used under another name as well"
    return None


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def memory_of(weights: Iterable[Tensor]) -> frozenset[tuple[int, int]]:
    """From where to where the weights are in memory."""
    stores = [weight.untyped_storage() for weight in weights]
    return frozenset((store.data_ptr(), store.data_ptr() + store.nbytes()) for store in stores)


def is_within(one: Any, memory: frozenset[tuple[int, int]]) -> bool:
    """Whether a tensor or an array has its numbers there; other objects have none."""
    if isinstance(one, np.ndarray):
        place = int(one.__array_interface__["data"][0])
    elif isinstance(one, Tensor):
        try:
            place = one.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # sparse ones have none of their own
            return False
    else:
        return False
    return any(low <= place < high for low, high in memory)


def _reachable(roots: list[Any]) -> Iterator[Any]:
    """All that the objects hold, and what of their globals functions name; not modules and classes."""
    seen: set[int] = set()
    left = list(roots)
    kept = []  # or an id could be given anew
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, _PROGRAM):
            continue
        seen.add(id(one))
        kept.append(one)
        yield one
        left += _referents(one)


def _referents(one: Any) -> list[Any]:
    if inspect.isfunction(one):
        named = [one.__globals__.get(name) for name in one.__code__.co_names]
        return [*named, one.__closure__, one.__defaults__, one.__kwdefaults__, vars(one)]
    if isinstance(one, torch.Tensor):
        return [vars(one)] if hasattr(one, "__dict__") else []
    return gc.get_referents(one)
