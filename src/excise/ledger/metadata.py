"""Columns of a data set besides inputs and targets, such as whose a sample is, wherever the data set keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from excise.errors import InputError


def column_of(data: Any, name: str) -> list[Any] | None:
    """One value for each sample, in the set's order; None where there is no such column.

    Known are sets with ``column_names`` (Hugging Face's), sets with ``metadata`` (a mapping or a data frame), data
    frames, and torch's ``Subset`` and ``ConcatDataset`` of such.

    >>> class Named(list):
    ...     metadata = {"customer": ["ann", "bob", "ann"]}
    >>> column_of(Subset(Named(range(3)), [2, 1]), "customer")
    ['ann', 'bob']
    >>> column_of(Named(range(3)), "email") is None
    True
    """
    if isinstance(data, Subset):
        inner = column_of(data.dataset, name)
        return None if inner is None else [inner[int(place)] for place in data.indices]
    if isinstance(data, ConcatDataset):
        parts = [column_of(one, name) for one in data.datasets]
        known = [part for part in parts if part is not None]
        return [value for part in known for value in part] if len(known) == len(parts) else None
    for table in _tables(data):
        if name in _names(table):
            return _values(table, name)
    return None


def column_names_of(data: Any) -> set[str]:
    """The names of all columns."""
    if isinstance(data, Subset):
        return column_names_of(data.dataset)
    if isinstance(data, ConcatDataset):
        return set.intersection(*map(column_names_of, data.datasets))
    return {name for table in _tables(data) for name in _names(table) if isinstance(name, str)}


def _tables(data: Any) -> list[Any]:
    """What of a data set has columns: itself, its metadata, or nothing."""
    return [one for one in (data, getattr(data, "metadata", None)) if _has_columns(one)]


def _has_columns(thing: Any) -> bool:
    return isinstance(thing, Mapping) or _is_frame(thing) or isinstance(getattr(thing, "column_names", None), list)


def _is_frame(thing: Any) -> bool:
    return hasattr(thing, "iloc") and hasattr(thing, "columns")


def _names(table: Any) -> list[Any]:
    return list(table.columns if _is_frame(table) else getattr(table, "column_names", table))


def _values(table: Any, name: str) -> list[Any]:
    plain = table.with_format(None) if callable(getattr(table, "with_format", None)) else table  # without transforms
    values = plain[name]
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InputError(f"the column {name!r} of the data set must have one value for each sample, in a list.")
    return list(values)
