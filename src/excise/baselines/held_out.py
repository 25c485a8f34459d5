"""Which held-out samples a method may look at."""

from __future__ import annotations

import torch
from torch import Tensor

from excise._support.checks import require
from excise.errors import InputError
from excise.task.ids import Ids
from excise.task.task import Task


def held_out_positions(task: Task, held_out: Ids | None, method: str) -> Tensor:
    """Checked positions in ``test_set``; None for all of it.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.ones(3, 1))
    >>> task = Task(torch.nn.Linear(1, 1), torch.nn.MSELoss(), data, test_set=data)
    >>> held_out_positions(task, None, "lotus"), held_out_positions(task, [2, 0], "lotus")
    (tensor([0, 1, 2]), tensor([2, 0]))
    """
    count = 0 if task.test_set is None else len(task.test_set)
    if not count:
        raise InputError(
            f"{method} learns from held-out data, but task has no test_set; pass test_set= to Task, or use a method "
            "that needs none, such as fine_tune or scrub."
        )
    if held_out is None:
        return torch.arange(count)
    ids = torch.as_tensor(held_out).cpu()
    numbers = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    right = numbers and ids.ndim == 1 and len(ids) > 0 and bool(((ids >= 0) & (ids < count)).all())
    require(right, "held_out", held_out, f"a list of positions in test_set, whole numbers from 0 to {count - 1}")
    return ids.long()
