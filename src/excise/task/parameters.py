"""The parameters of a model that training changes, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from excise.errors import InputError
from excise.task.precision import rounded_at_random

Tensors = Mapping[str, Tensor]


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        raise InputError(
            "model has no trainable parameters: requires_grad is off for all of them, as in a model that was exported "
            "for inference; call model.requires_grad_(True), or do so for the parts that were trained."
        )
    return weights


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The model's trainable parameters by name, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def move(model: nn.Module, start: dict[str, Tensor], change: dict[str, Tensor]) -> None:
    """Set the weights to where they started, plus a change; those in bfloat16 are rounded so that little ones count."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in trainable(model).items():
            if name not in change:
                weight.copy_(start[name])
            elif weight.dtype == torch.bfloat16:
                weight.copy_(rounded_at_random(start[name].float() + change[name].float(), generator))
            else:
                weight.copy_(start[name] + change[name])


def norm(tensors: Tensors) -> float:
    """Euclidean norm of all the tensors together."""
    return float(torch.cat([tensor.flatten() for tensor in tensors.values()]).norm())
