"""Linear layers: a slice is a row of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from excise.slices.layers import LayerKind, UnitView, layer_kind


@layer_kind(nn.Linear)
class Linear(LayerKind):
    """``nn.Linear``, on vectors or on the tokens of a sequence."""

    name = "linear"
    features_axis = -1
    is_linear_head = True
    has_places = False

    def units(self, module: Any) -> int:
        """Outputs."""
        return int(module.out_features)

    def has_kfac(self, module: Any) -> bool:
        """Always."""
        return True

    def kfac_inputs(self, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
        """The input itself; of a text, that of some tokens, at equal distances."""
        if inputs.ndim == 2:
            return inputs
        tokens = inputs.flatten(1, -2)
        return tokens[:, :: math.ceil(tokens.shape[1] / places)].flatten(0, 1)

    def vectors(self, module: Any, inputs: Tensor) -> Tensor | None:
        """The input, at each token."""
        return inputs.reshape(len(inputs), -1, 1, inputs.shape[-1]) if inputs.ndim > 1 else None


@layer_kind("Conv1D")
class HuggingFaceConv1D(Linear):
    """``Conv1D`` of Hugging Face's transformers: a linear layer, weight transposed."""

    def fits(self, module: Any) -> bool:
        """Not every class of that name is theirs."""
        return hasattr(module, "nf")

    def units(self, module: Any) -> int:
        """Outputs."""
        return int(module.nf)

    def views(self, module: Any) -> Mapping[str, UnitView]:
        """Weights are inputs × outputs."""
        return {"weight": UnitView(lambda weight: weight.T), "bias": UnitView()}
