"""Layers whose statistics fit into memory together: those of a large network are made group by group."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from excise.curvature.layer_statistics import INPUTS
from excise.curvature.spill import Spill
from excise.slices.layers import Layer
from excise.task.parameters import trainable

FLOAT = 4  # bytes


def groups_within(spill: Spill, layers: Sequence[Layer], model: nn.Module) -> list[list[Layer]]:
    """Layers in their order, in as few groups as fit into memory, with factors before these are put away."""
    groups: list[list[Layer]] = [[]]
    total = 0.0
    for layer in layers:
        size = _bytes_of_inputs(layer, model) + 2 * bytes_of_outputs([layer], model)
        if groups[-1] and not spill.has_room(total + size):
            groups.append([])
            total = 0.0
        groups[-1].append(layer)
        total += size
    return groups


def bytes_of_row(model: nn.Module) -> int:
    """Of a sample's gradient, whole."""
    return sum(one.numel() * max(FLOAT, one.element_size()) for one in trainable(model).values())


def bytes_of_outputs(layers: Sequence[Layer], model: nn.Module) -> int:
    """Of all B."""
    return sum(FLOAT * layer.type.kfac_outputs(model.get_submodule(layer.module)) ** 2 for layer in layers)


def _bytes_of_inputs(layer: Layer, model: nn.Module) -> int:
    """Of the vectors a, at most."""
    weights = trainable(model)
    width = sum(part.width(weights[part.parameter], layer.units) for part in layer.parts)
    return FLOAT * (layer.units if layer.type.looks_up else INPUTS * width)
