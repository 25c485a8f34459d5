"""Objects by their names: strings are sugar for what a table makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from excise._support.checks import choice

T = TypeVar("T")


def named(thing: T | str, table: Mapping[str, Callable[[], T]], argument: str) -> T:
    """What a name stands for in the table; anything but text as it is. An unknown name gets the nearest suggested.

    >>> named("ten", {"ten": lambda: 10}, "number"), named(11, {}, "number")
    (10, 11)
    """
    return table[choice(thing, tuple(table), argument)]() if isinstance(thing, str) else thing


def fill_in(frozen: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
