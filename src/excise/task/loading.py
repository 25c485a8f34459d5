"""A task, or another thing of the user's, by its address on the command line."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from excise._support.parcels import send_along
from excise._support.reading import reason
from excise.errors import ExciseError, InputError
from excise.task.task import Task


def load_task(address: str) -> Task:
    """The task that ``module:factory`` makes; the module may lie in the current folder."""
    task = made_by(address, "task")
    if not isinstance(task, Task):
        raise InputError(f"{address} must return an excise.Task, but returned a {type(task).__name__}.")
    return task


def made_by(address: str, what: str) -> Any:
    """What the function at ``module:factory`` returns, such as a task."""
    module_name, _, factory_name = address.partition(":")
    if not module_name or not factory_name:
        raise InputError(
            f"the {what} must be given as module:factory, not {address!r}; such as my_project.tasks:digits."
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _imported(module_name, what)
        factory = getattr(module, factory_name, None)
        if not callable(factory):
            raise InputError(f"the {what}'s module {module_name!r} has no function {factory_name!r}.")
        _require_no_arguments(factory, address)
        if _lies_here(module):
            send_along(module_name)
        with _naming_the_place(f"{address} failed"):
            return factory()
    finally:
        sys.path.pop(0)


def _imported(name: str, what: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(
            f"the {what}'s module {name!r} is no name of a module; write it as in import, my_project.tasks."
        )
    try:
        with _naming_the_place(f"the {what}'s module {name!r} can't be imported"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"the {what}'s module {name!r} can't be imported: {error}.") from None


def _lies_here(module: ModuleType) -> bool:
    """Whether it is in the current folder, where workers on other machines, or in other folders, don't find it."""
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(Path.cwd().resolve())


def _require_no_arguments(factory: Callable[..., Any], address: str) -> None:
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InputError(f"{address} must be a function that needs no arguments, but: {error}.") from None
    except ValueError:  # what is written in C may not tell
        pass


@contextlib.contextmanager
def _naming_the_place(what: str) -> Iterator[None]:
    """What goes wrong in the user's own code, with the line where it did."""
    try:
        yield
    except (ExciseError, ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this function
        place = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
        raise InputError(f"{what} ({type(error).__name__}: {reason(error)}{place}).") from error
