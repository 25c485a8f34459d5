"""What a method of unlearning is: an object that holds the options it heeds, and changes a model in place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from excise._support.checks import choice
from excise._support.progress import Stages
from excise.errors import InputError, NeverSupportedError, NotYetSupportedError
from excise.slices.slices import Slices, find_slices
from excise.task.task import Task
from excise.unlearning.guard import Retained

PLUGINS = ("excise.baselines",)
"""Modules that register methods when they are imported, besides those of other packages' ``excise.methods``."""
SAMPLES = 1000


@dataclass(frozen=True)
class Workspace:
    """What a method works with, for all requests."""

    task: Task
    seed: int
    n_jobs: int | None

    @cached_property
    def slices(self) -> Slices:
        """The model's slices; a model that can't be sliced is refused."""
        return find_slices(self.task.model)

    @property
    def known_slices(self) -> Slices:
        """The model's slices; none where it can't be sliced."""
        return self.slices if self.has_slices else Slices(())

    @property
    def has_slices(self) -> bool:
        """Whether the model can be sliced: not every method needs that."""
        try:
            return len(self.slices) > 0
        except (NotYetSupportedError, NeverSupportedError):
            return False


@dataclass(frozen=True)
class Removal:
    """One request: what is to be forgotten now, and what remains."""

    ids: list[int]
    residual: Tensor
    """The samples that are left."""
    gone: frozenset[int]
    """All that is forgotten, by earlier requests too."""
    seed: int
    stages: Stages
    retained: Retained

    @cached_property
    def all_gone(self) -> Tensor:
        """The same as positions, in order."""
        return torch.tensor(sorted(self.gone), dtype=torch.long)

    @property
    def earlier(self) -> int:
        """How many samples earlier requests have forgotten."""
        return len(self.gone) - len(self.ids)


@dataclass(frozen=True)
class Applied:
    """Which slices were changed and why, and how much of the step was taken."""

    numbers: frozenset[int] | set[int] = frozenset()
    scores: dict[int, float] = field(default_factory=dict)
    share: float = 1.0
    shortened: str = ""
    """Why the share is less than 1, as a sentence for people."""
    losses: Tensor | None = None
    """Losses of the guard's samples under the new model, where they are known."""


@runtime_checkable
class Method(Protocol):
    """A way to forget."""

    heeds_guard: ClassVar[bool]
    """Whether it stops at what the guard allows."""

    def check(self, workspace: Workspace) -> None:
        """Refuse a task that the method can't work with, before any work is done."""

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """How many retained samples ``prepare`` looks at."""

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> Any:
        """Make what all requests share, from these retained samples."""

    def apply(self, workspace: Workspace, prepared: Any, /, model: nn.Module, removal: Removal) -> Applied:
        """Make the model forget, in place."""


class Unprepared:
    """For methods that share nothing between requests."""

    def check(self, workspace: Workspace) -> None:
        """Any task will do."""

    def samples(self, workspace: Workspace, model: nn.Module) -> int:  # noqa: ARG002
        """As many as the guard draws its own from."""
        return SAMPLES

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> None:
        """Nothing to make."""


_METHODS: dict[str, Callable[[], Method]] = {}
M = TypeVar("M")


def register(name: str) -> Callable[[M], M]:
    """Make a method known by a name: a class, or a function that makes one.

    A class that is registered tells, for an option that it does not have, which method has it.
    """

    def known(make: M) -> M:
        _METHODS[name] = make  # type: ignore[assignment]
        if isinstance(make, type):
            make.name = name  # type: ignore[attr-defined]
            _name_strangers(make)
        return make

    return known


def _name_strangers(method: type[Any]) -> None:
    """Turn an unknown option into an error that names the methods which heed it."""
    plain = method.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **options: Any) -> None:
        for option in options:
            refuse_unknown_option(method, option)
        plain(self, *args, **options)

    method.__init__ = init


def refuse_unknown_option(kind: type[Any], option: str, where: str = "") -> None:
    """Refuse an option that a method, or an object inside one, does not have, naming those which do."""
    own = _options(kind)
    if option in own:
        return
    others = sorted(
        {made.__name__ for made in _METHODS.values() if isinstance(made, type) and option in _options(made)}
    )
    heeded = f"; {' and '.join(others)} {'does' if len(others) == 1 else 'do'}" if others else ""
    has = f"It has {', '.join(own)}." if own else "It has no options."
    raise InputError(f"{where}{kind.__name__} does not heed {option}{heeded}. {has}")


def _options(kind: type[Any]) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def method_names() -> tuple[str, ...]:
    """The names of all methods, those of plug-ins too."""
    _load_plugins()
    return tuple(_METHODS)


def method_named(given: Method | str) -> Method:
    """A method, given as such or by its name."""
    if not isinstance(given, str):
        if isinstance(given, type) or not isinstance(given, Method):
            raise InputError(f"method must be a name such as 'step', or an object such as Step(), not {given!r}.")
        return given
    if given not in _METHODS:
        _load_plugins()
    return _METHODS[choice(given, tuple(_METHODS), "method")]()


@functools.cache
def _load_plugins() -> None:
    for module in PLUGINS:
        import_module(module)
    for entry in entry_points(group="excise.methods"):
        entry.load()


def settings_of(thing: Any) -> Any:
    """All options of a method, guard or other object, in plain values that JSON can hold, for records."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        own = {one.name: settings_of(getattr(thing, one.name)) for one in dataclasses.fields(thing) if one.repr}
        return {"name": getattr(thing, "name", type(thing).__name__), **own}
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, Mapping):
        return {str(key): settings_of(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple | set | frozenset):
        return [settings_of(value) for value in thing]
    if isinstance(thing, Tensor):
        return f"tensor of shape {tuple(thing.shape)}"
    return getattr(thing, "__qualname__", type(thing).__qualname__)
