"""How samples become a batch where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate


def collated(samples: list[Any]) -> Any:
    """As torch's ``default_collate``, but a list of numbers that a mapping holds is one row, and not a column each.

    Rows of tables are such mappings, as those of Hugging Face's sets are without a format: tokens, pixels, features.

    >>> collated([{"input_ids": [7, 8], "labels": 0}, {"input_ids": [9, 0], "labels": 1}])
    {'input_ids': tensor([[7, 8],
            [9, 0]]), 'labels': tensor([0, 1])}
    """
    if isinstance(samples, list) and samples and isinstance(samples[0], Mapping):
        samples = [{name: _row(value) for name, value in one.items()} for one in samples]
    return default_collate(samples)


def _row(value: Any) -> Any:
    """Lists of numbers, or of such lists, as a tensor; all else as it is."""
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if first is value or not isinstance(first, int | float):
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError):  # of several lengths, or kinds
        return value
