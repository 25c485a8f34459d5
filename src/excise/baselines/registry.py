"""The methods by name: each registers itself with ``@baseline``, in the file that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar

from torch import nn

from excise.errors import InputError
from excise.task.ids import Ids
from excise.task.task import Task


class Baseline(Protocol):
    """A method of unlearning: from a trained model and what to forget, a new model in eval mode."""

    def __call__(self, task: Task, model: nn.Module, forget: Ids, *args: Any, **options: Any) -> nn.Module:
        """The model without the samples at these positions in ``task.train_set``; the given one is left as it was.

        All take ``seed``, a keyword like the options of their own (``*args`` is there for the type checker alone), and
        ``forgotten``: positions of samples that earlier requests removed, which are neither forgotten again nor
        counted among the retained ones.
        """
        ...


METHODS: dict[str, Baseline] = {}
"""By the name that the command line uses."""
GRIDS: dict[str, list[dict[str, Any]]] = {}
"""A few settings of each method to tune it over."""
REFERENCES: dict[str, str] = {}
"""Whose method it is."""

Method = TypeVar("Method", bound=Baseline)


def baseline(name: str, *, reference: str, grid: Sequence[dict[str, Any]] = ({},)) -> Callable[[Method], Method]:
    """Register a function as a method under a name; the function itself is left as it is.

    Args:
        name: As on the command line; a name that is taken is refused.
        reference: Authors and year, or what it is.
        grid: Settings to tune over, as keyword arguments: for small networks.

    >>> @baseline("do-nothing", reference="nobody", grid=[{}, {"often": 2}])
    ... def do_nothing(task, model, forget, *, seed, forgotten=(), often=1):
    ...     return model
    >>> METHODS.pop("do-nothing") is do_nothing, GRIDS.pop("do-nothing"), REFERENCES.pop("do-nothing")
    (True, [{}, {'often': 2}], 'nobody')
    """

    def register(method: Method) -> Method:
        if name in METHODS:
            raise InputError(f"name={name!r} is the method {METHODS[name]!r} already; choose another.")
        METHODS[name], GRIDS[name], REFERENCES[name] = method, list(grid), reference
        return method

    return register


def import_all(package: str, path: Sequence[str]) -> None:
    """Import every module of a package in the order of their names, so that the methods in them register."""
    for module in sorted(iter_modules(path), key=lambda one: one.name):
        import_module(f"{package}.{module.name}")
