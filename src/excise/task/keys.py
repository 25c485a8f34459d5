"""Names of the user's own for samples, such as customer ids: which samples belong to a key."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from excise.errors import InputError


def group_by_key(keys: Any, count: int) -> dict[Hashable, list[int]]:
    """The samples of every key, in their order.

    >>> group_by_key(["ann", "bob", "ann"], 3)
    {'ann': [0, 2], 'bob': [1]}
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InputError(f"keys must be one name for each sample of train_set, in its order, not {keys!r}.")
    listed = [plain_key(key) for key in keys]
    if len(listed) != count:
        raise InputError(f"keys has {len(listed):,} entries, but train_set has {count:,} samples; pass one for each.")
    found: dict[Hashable, list[int]] = {}
    for place, key in enumerate(listed):
        try:
            found.setdefault(key, []).append(place)
        except TypeError:
            raise InputError(
                f"keys has {key!r} (a {type(key).__name__}) at position {place}, which can't be looked up; use text, "
                "numbers or tuples of these."
            ) from None
    return found


def ids_of_keys(keys: Iterable[Hashable], known: Mapping[Hashable, list[int]]) -> list[int]:
    """All samples of these keys, in rising order."""
    if isinstance(keys, str):
        raise InputError(f"keys must be a list of keys, not the text {keys!r}; pass [{keys!r}].")
    asked = [plain_key(key) for key in keys]
    if not asked:
        raise InputError("keys names no one; pass at least one key.")
    for place, key in enumerate(asked):
        if key not in known:
            raise InputError(f"keys has {key!r}, which no sample of train_set has.{_nearest(key, known)}")
        if key in asked[:place]:
            raise InputError(f"keys has {key!r} more than once; name every key once.")
    return sorted(place for key in asked for place in known[key])


def keys_from_text(words: Iterable[str], known: Mapping[Hashable, list[int]]) -> list[Hashable]:
    """The keys that words on a command line mean: a key is known there by how it prints."""
    by_text: dict[str, list[Hashable]] = {}
    for key in known:
        by_text.setdefault(str(key), []).append(key)
    found: list[Hashable] = []
    for word in words:
        meant = by_text.get(word, [])
        if not meant:
            raise InputError(f"keys has {word!r}, which no sample of train_set has.{_nearest(word, known)}")
        if len(meant) > 1:
            raise InputError(f"keys has {word!r}, which could mean {' or '.join(map(repr, meant))}; make keys differ.")
        found.append(meant[0])
    return found


def plain_key(key: Any) -> Any:
    """A number or text out of the array or tensor that it came in: equal ones are found whatever their wrapping."""
    item = getattr(key, "item", None)
    return item() if callable(item) and getattr(key, "ndim", 1) == 0 else key


def _nearest(key: Hashable, known: Mapping[Hashable, list[int]]) -> str:
    close = difflib.get_close_matches(str(key), list(map(str, known)), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
