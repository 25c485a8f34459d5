"""Naming samples of the training set by their positions in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from excise.errors import InputError

Ids = Sequence[int] | Tensor | NDArray[Any]


def positions(ids: Ids | None, count: int) -> Tensor:
    """Checked positions in a data set of so many samples; None for all."""
    if count == 0:
        raise InputError("train_set is empty (length 0); pass at least one sample.")
    if ids is None:
        return torch.arange(count)
    try:
        found = torch.as_tensor(ids).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"ids must be whole numbers, positions in train_set, not {ids!r}.") from None
    if found.ndim != 1 or len(found) == 0:
        raise InputError(f"ids must be one list of at least one position, not of shape {tuple(found.shape)}.")
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"ids must be whole numbers, not {found.dtype}; of a mask, pass mask.nonzero()[:, 0].")
    wrong = found[(found < 0) | (found >= count)]
    if len(wrong):
        raise InputError(f"ids must be from 0 to {count - 1} (positions in train_set), not {int(wrong[0])}.")
    values, often = found.unique(return_counts=True)
    if len(values) < len(found):
        raise InputError(f"ids has {int(values[often > 1][0])} more than once; name every sample once.")
    return found.long()


def all_but(ids: Ids, count: int) -> Tensor:
    """The other positions of so many, in rising order."""
    keep = torch.ones(count, dtype=torch.bool)
    keep[torch.as_tensor(ids, dtype=torch.long).cpu()] = False
    return keep.nonzero().flatten()


def require_some_left(ids: Sequence[int] | Tensor, count: int, name: str = "ids") -> None:
    """Refuse a request for everything: of no sample nothing can be retained."""
    if len(ids) >= count:
        raise InputError(
            f"{name} has all {count} samples of train_set; leave at least one to retain, or train a new model."
        )
