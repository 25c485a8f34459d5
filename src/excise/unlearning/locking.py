"""Requests from several threads: one after the other, so that none is lost."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

from excise.task.hooks import exclusive
from excise.task.task import Task

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Locked")


class Locked:
    """A session that one thread works on at a time, and that can be copied all the same.

    Another session with the same model waits as well: for the time of a request the model has hooks, and its modes and
    weights may be others.
    """

    task: Task
    _model: nn.Module
    _lock: AbstractContextManager[Any]
    """A lock that its holder may take again."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}  # which can't be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def __deepcopy__(self: S, memo: dict[int, Any]) -> S:
        with self._lock, exclusive(self.task.model, self._model):
            other = type(self).__new__(type(self))
            memo[id(self)] = other
            other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
            return other


def one_at_a_time(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that waits until no other thread is in one of these, of this session or of one with the same model."""

    @functools.wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        full = torch.autocast(self.task.device.type, enabled=False)  # small changes are lost in half precision
        with self._lock, exclusive(self.task.model, self._model), full:
            return method(self, *args, **kwargs)

    return waiting
