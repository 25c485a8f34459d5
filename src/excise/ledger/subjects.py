"""Which training samples are whose: found by the task's keys, by a column of the data set, or by a function.

The ledger knows people by keyed hashes alone. So the hash of everyone in the training set is computed, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.ledger.identities import IDENTITY_TYPE, HmacOf, digest_of_text
from excise.ledger.metadata import column_names_of, column_of
from excise.ledger.samples import Rows
from excise.task.keys import plain_key
from excise.task.task import Task

Finder = str | Callable[[Task], Any]
"""``"keys"``, the name of a column, or a function that gives one value for each sample (None for nobody's)."""
SHOWN_TYPES = 20


class Subjects:
    """Everyone in a training set.

    Args:
        task: With the training set, and its keys if it has some.
        finders: For a type of identity how its values are found. By default ``"key"`` means the task's keys,
            ``"sample"`` the leaf of one sample, and another type the column of the data set's metadata of that name.
        leaves: Of the samples, one row each, by which single samples can be named.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 1), torch.tensor([0, 1, 1]))
    >>> task = Task(torch.nn.Linear(1, 2), torch.nn.CrossEntropyLoss(), data, keys=["ann", "bob", "ann"])
    >>> def hmac_of(kind, message): return message  # in place of a real one
    >>> ann, eve = digest_of_text("key", "ann", hmac_of), digest_of_text("key", "eve", hmac_of)
    >>> list(Subjects(task).find([("key", ann), ("key", eve)], hmac_of).values())
    [(0, 2), ()]
    """

    def __init__(self, task: Task, finders: Mapping[str, Finder] | None = None, *, leaves: Rows | None = None) -> None:
        self._task, self._finders, self._leaves = task, dict(finders or {}), leaves
        for name, finder in self._finders.items():
            if not isinstance(name, str) or not IDENTITY_TYPE.fullmatch(name):
                raise InputError("finders must map types of identity, such as 'email', to how they are found.")
            if not isinstance(finder, str) and not callable(finder):
                raise InputError(f"finders[{name!r}] must be 'keys', a column's name or a function, not {finder!r}.")
        if leaves is not None and len(leaves) != len(task.train_set):
            raise InputError(f"leaves has {len(leaves)} rows, and train_set {len(task.train_set)} samples.")
        self._known: dict[str, dict[str, tuple[int, ...]]] = {}
        self._hmac_of: HmacOf | None = None

    @property
    def types(self) -> list[str]:
        """The types of identity that people can be found by."""
        columns = {name for data in self._sets for name in column_names_of(data) if IDENTITY_TYPE.fullmatch(name)}
        own = {"key"} if self._task.keys is not None else set()
        return sorted({*self._finders, *columns, *own, *({"sample"} if self._leaves is not None else ())})

    def find(self, digests: Iterable[tuple[str, str]], hmac_of: HmacOf) -> dict[str, tuple[int, ...]]:
        """The positions of everyone's samples, by digest; empty where no sample is theirs.

        Hashes of all values of a type are computed when it is first asked for, and kept.

        Args:
            digests: Types of identities, and their hashes (``identities.digest``).
            hmac_of: The ledger's keyed hash.
        """
        if hmac_of != self._hmac_of:
            self._known, self._hmac_of = {}, hmac_of
        return {one: self._of_type(kind, hmac_of).get(one, ()) for kind, one in digests}

    def _of_type(self, kind: str, hmac_of: HmacOf) -> dict[str, tuple[int, ...]]:
        if kind not in self._known:
            values, whose = self._values(kind)
            self._known[kind] = {
                digest_of_text(kind, text, hmac_of): tuple(places) for text, places in _by_text(values, whose).items()
            }
        return self._known[kind]

    @property
    def _sets(self) -> list[Any]:
        return [data for data in (self._task.train_set, self._task.plain_set) if data is not None]

    def _values(self, kind: str) -> tuple[list[Any], str]:
        """One value for each sample, and where they are from."""
        finder = self._finders.get(kind)
        if callable(finder):
            return self._checked(_answer(finder, self._task, kind), f"finders[{kind!r}]")
        if finder == "keys" or (finder is None and kind == "key" and self._task.keys is not None):
            return self._keys(), "keys of the task"
        if finder is None and kind == "sample" and self._leaves is not None:
            return [row.tobytes().hex() for row in np.asarray(self._leaves)], "leaves"
        name = kind if finder is None else finder
        for data in self._sets:
            if (values := column_of(data, name)) is not None:
                return self._checked(values, f"the column {name!r} of the data set")
        raise self._unknown(kind, name)

    def _keys(self) -> list[Any]:
        values: list[Any] = [None] * len(self._task.train_set)
        for key, places in self._task.positions_of_keys.items():
            for place in places:
                values[place] = key
        return values

    def _checked(self, values: list[Any], whose: str) -> tuple[list[Any], str]:
        count = len(self._task.train_set)
        if len(values) != count:
            raise InputError(f"{whose} has {len(values):,} values, and train_set {count:,} samples; it needs as many.")
        return values, whose

    def _unknown(self, kind: str, column: str) -> InputError:
        there = self.types
        more = f" and {len(there) - SHOWN_TYPES} more" if len(there) > SHOWN_TYPES else ""
        listed = ", ".join(map(repr, there[:SHOWN_TYPES])) + more if there else "none"
        missing = f", since the data set has no column {column!r}" if column != kind else ""
        return InputError(
            f"identity_type {kind!r} is none that people can be found by{missing}; there are: {listed}. Pass keys= to "
            f"Task, give the data set such a column, or pass finders={{{kind!r}: ...}}."
        )


def _answer(finder: Callable[[Task], Any], task: Task, kind: str) -> list[Any]:
    try:
        found = finder(task)
        if isinstance(found, str | bytes):
            raise TypeError
        return list(found)
    except MemoryError:
        raise
    except Exception as error:  # what it says may name someone
        raise InputError(
            f"finders[{kind!r}] failed ({type(error).__name__}); it must give one value for each sample of train_set."
        ) from None


def _by_text(values: list[Any], whose: str) -> dict[str, list[int]]:
    """The positions of each value, which is known by how it prints; values of nobody are left out."""
    found: dict[str, list[int]] = {}
    first: dict[str, Any] = {}
    for place, given in enumerate(values):
        value = plain_key(given)
        if _is_missing(value):
            continue
        _require_name(value, whose, place)
        text = str(value)
        other = first.setdefault(text, value)
        if type(other) is not type(value) or other != value:
            raise InputError(
                f"{whose}: the values at positions {found[text][0]} and {place} print alike but are not the same (1 "
                "and '1', for example), so that a request could mean either; make them all text."
            )
        found.setdefault(text, []).append(place)
    return found


def _is_missing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _require_name(value: Any, whose: str, place: int) -> None:
    """Refuse what no request would be written like."""
    if isinstance(value, float) and value.is_integer():
        raise InputError(
            f"{whose}: the value at position {place} is a whole number in floating point, which prints with '.0' at "
            "its end; make the values whole numbers or text (of a data frame: .astype('Int64'))."
        )
    if isinstance(value, bytes | bytearray | list | dict | set) or hasattr(value, "ndim"):
        raise InputError(
            f"{whose}: the value at position {place} is of type {type(value).__name__}, and must be text or a number "
            "that names a person."
        )
