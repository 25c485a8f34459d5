"""Convolutions: a slice is a filter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from excise.slices.layers import LayerKind, UnitView, layer_kind


@layer_kind(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Convolution(LayerKind):
    """Convolutions in one to three dimensions, with groups, strides, dilation and any padding."""

    name = "convolution"
    features_axis = 1
    draws_places = True

    def units(self, module: Any) -> int:
        """Filters."""
        return int(module.out_channels)

    def has_kfac(self, module: Any) -> bool:
        """Always."""
        return True

    def kfac_inputs(self, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
        """The patches of the input that the filters see, at random places (the same for the whole batch)."""
        view = _patches(module, inputs)
        shape = view.shape[2 : 2 + len(module.kernel_size)]
        where = torch.randperm(math.prod(shape), generator=generator)[:places]
        here: tuple[Any, ...] = (slice(None), slice(None), *torch.unravel_index(where, shape))
        picked = view[here]  # samples × channels × places × kernel
        return picked.transpose(1, 2).reshape(-1, picked.shape[1] // module.groups * math.prod(module.kernel_size))

    def vectors(self, module: Any, inputs: Tensor) -> Tensor | None:
        """The patches, at all places."""
        dimensions = len(module.kernel_size)
        if inputs.ndim != 2 + dimensions:
            return None
        view = _patches(module, inputs).movedim(1, 1 + dimensions)
        places = math.prod(view.shape[1 : 1 + dimensions])
        return view.reshape(len(inputs), places, module.groups, -1)


@layer_kind(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolution(LayerKind):
    """Transposed convolutions, with groups."""

    name = "transposed convolution"
    features_axis = 1

    def units(self, module: Any) -> int:
        """Filters."""
        return int(module.out_channels)

    def views(self, module: Any) -> Mapping[str, UnitView]:
        """Weights are in × (out / groups) × kernel, and a unit has its group's inputs."""
        groups = module.groups
        if groups == 1:
            return {"weight": UnitView(lambda weight: weight.transpose(0, 1)), "bias": UnitView()}

        def by_group(weight: Tensor) -> Tensor:
            return weight.view(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2)

        return {"weight": UnitView(by_group, module.out_channels // groups), "bias": UnitView()}


def _patches(module: Any, inputs: Tensor) -> Tensor:
    """What the filters see, as a view: samples × channels × places along each axis × kernel."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    view = nn.functional.pad(inputs, _padding(module), mode=mode)
    for axis in range(len(module.kernel_size)):
        reach = (module.kernel_size[axis] - 1) * module.dilation[axis] + 1
        view = view.unfold(2 + axis, reach, module.stride[axis])[..., :: module.dilation[axis]]
    return view


def _padding(module: Any) -> list[int]:
    """As ``functional.pad`` wants it: last axis first, both sides of each."""
    sides: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [0, 0] if module.padding == "valid" else [module.padding[axis]] * 2
    return sides
