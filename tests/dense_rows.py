"""Gradients of samples' margins by a backward pass for each, and their kernel by dense rows: slow and obvious."""

import torch

from excise.curvature.margins import margin_of
from excise.task.parameters import trained_parameters


def margin_rows(task, model, block, ids):
    """∇φ of each sample on the block, one row each."""
    weights = trained_parameters(model)
    rows = []
    for number in torch.as_tensor(ids).tolist():
        outputs, targets = task.outputs(model, task.batch([number]))
        margin = margin_of(outputs, task.plain_targets(targets)).sum()
        gradients = torch.autograd.grad(margin, list(weights.values()), allow_unused=True, materialize_grads=True)
        rows.append(block.gather(dict(zip(weights, gradients, strict=True))).detach())
    return torch.stack(rows)
