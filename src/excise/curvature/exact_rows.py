"""The largest rows, kept as they are: of a large network made a few at a time, so that memory stays bounded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise.curvature.groups import bytes_of_row
from excise.curvature.rows import DenseRows, Rows, joined
from excise.curvature.sample_rows import sample_rows
from excise.curvature.spill import Spill
from excise.slices.slices import Slices
from excise.task.parameters import trainable
from excise.task.task import Task


def exact_rows(
    task: Task, model: nn.Module, slices: Slices, samples: Tensor, cotangents: Tensor, spill: Spill | None = None
) -> tuple[Rows, ...]:
    """Jᵀu of each sample and cotangent u, by layer; kept in ``spill`` where there is one."""
    if len(samples) == 0:
        like, blocks = trainable(model), slices.block(range(len(slices))).chosen
        return tuple(DenseRows(torch.zeros(0, *block.shape(like)).to(cotangents)) for block in blocks)
    if spill is None:
        return tuple(sample_rows(task, model, slices, samples, cotangents))
    size = max(1, int(spill.limit // bytes_of_row(model)))
    files = Spill(0)  # until they are put together, layer by layer
    pieces: list[list[Rows]] = []
    for some, given in zip(samples.split(size), cotangents.split(size), strict=True):
        pieces.append([one.kept_in(files) for one in sample_rows(task, model, slices, some, given)])
        files.give_back()
    return tuple(joined(of_layer).kept_in(spill) for of_layer in zip(*pieces, strict=True))
