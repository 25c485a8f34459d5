"""Watching modules during forward passes: one place that hangs hooks in, and takes them out again.

A hook sees the calls of its own thread alone, and who copies a model or puts it into another mode holds its lock, so
that no thread comes upon the hooks of another.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

Seen = TypeVar("Seen")

_NUMBERS = itertools.count()


@dataclass(frozen=True, eq=False)
class _Lock:
    """A lock that its holder may take again, and its place in the order that all take locks in."""

    number: int = field(default_factory=lambda: next(_NUMBERS))
    held: Any = field(default_factory=threading.RLock)


_LOCKS: WeakKeyDictionary[nn.Module, _Lock] = WeakKeyDictionary()
_GUARD = threading.Lock()  # of the dictionary itself


@contextmanager
def exclusive(*models: nn.Module) -> Iterator[None]:
    """No other thread is inside with one of these models, nor watches one; the same thread may come in again."""
    with _GUARD:
        locks = {_LOCKS.setdefault(model, _Lock()) for model in models}
    with ExitStack() as stack:
        for lock in sorted(locks, key=lambda lock: lock.number):  # in one order, or two threads could wait for ever
            stack.enter_context(lock.held)
        yield


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    place: int
    """Of the module's name among those that are watched."""
    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    """Arguments by name."""
    output: Any = None
    """None before the call."""

    @property
    def input(self) -> Any:
        """The first argument, however it was passed."""
        return self.arguments[0] if self.arguments else next(iter(self.options.values()))


@contextmanager
def capture(
    model: nn.Module,
    names: Sequence[str],
    see: Callable[[Call], Seen],
    *,
    before: bool = False,
    protect: bool = False,
) -> Iterator[list[list[Seen]]]:
    """What ``see`` finds in every call of the named modules inside, call by call; a list for each name, in their order.

    Afterwards, and after an error too, no hook is left. Calls in other threads are not seen.

    Args:
        model: Where the modules are; ``""`` is the model itself.
        names: The modules' names. A name may come several times.
        see: From a call, what to keep.
        before: Whether to look before the call, when there is no output yet.
        protect: Whether what follows gets a copy of the output, so that the one that was seen stays as it was even
            where the next module works in place.

    >>> import torch
    >>> model = nn.Sequential(nn.Flatten(), nn.Threshold(1.0, 0.0))
    >>> with capture(model, ["1"], lambda call: call.input.tolist()) as (seen,):
    ...     _ = model(torch.tensor([[0.0, 2.0]])), model(torch.tensor([[3.0]]))
    >>> seen
    [[[0.0, 2.0]], [[3.0]]]
    """
    seen: list[list[Seen]] = [[] for _ in names]
    handles: list[Any] = []
    with exclusive(model):
        try:
            for place, name in enumerate(names):
                module = model.get_submodule(name)
                if before:
                    hook = _before(place, see, seen[place])
                    handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
                else:
                    after = _after(place, see, seen[place], protect)
                    handles.append(module.register_forward_hook(after, with_kwargs=True))
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def _before(place: int, see: Callable[[Call], Seen], bucket: list[Seen]) -> Callable[..., None]:
    ours = threading.get_ident()

    def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if threading.get_ident() == ours:
            bucket.append(see(Call(place, module, arguments, options)))

    return hook


def _after(place: int, see: Callable[[Call], Seen], bucket: list[Seen], protect: bool) -> Callable[..., Tensor | None]:
    ours = threading.get_ident()

    def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> Tensor | None:
        if threading.get_ident() != ours:
            return None
        bucket.append(see(Call(place, module, arguments, options, output)))
        return output.clone() if protect else None

    return hook
