"""Attention of torch: the packed projections to query, key and value, and the output projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from excise.errors import NotYetSupportedError
from excise.slices.layers import Layer, LayerKind, Rows, UnitView, View, layer_kind, parameter_name, trainable_parts
from excise.task.hooks import Call

ARGUMENTS = ("query", "key", "value")


class _Projection(LayerKind):
    """One of the projections; what goes into it and comes out of it stays within the module."""

    name = "attention projection"

    def units(self, module: Any) -> int:
        """Features."""
        return int(module.embed_dim)


class InputProjection(_Projection):
    """To query, key or value: a third of the packed weights."""

    def __init__(self, index: int) -> None:
        self._index = index

    def activations(self, call: Call, mask: Tensor | None) -> Tensor:
        """The projection of the mean token, which is the mean of the tokens' projections."""
        module: Any = call.module
        given = dict(zip(ARGUMENTS, call.arguments, strict=False)) | call.options
        source = given[ARGUMENTS[self._index]].mean(1 if module.batch_first else 0)
        third = _third(self._index, module.embed_dim)
        bias = None if module.in_proj_bias is None else third(module.in_proj_bias)
        return functional.linear(source, third(module.in_proj_weight), bias)


class OutputProjection(_Projection):
    """To what the module puts out."""

    def activations(self, call: Call, mask: Tensor | None) -> Tensor:
        """The mean over tokens."""
        module: Any = call.module
        output: Tensor = call.output[0]
        return output.mean(1 if module.batch_first else 0)


@layer_kind(nn.MultiheadAttention)
class Attention(_Projection):
    """``nn.MultiheadAttention``: four layers, one for each projection."""

    owns = ("out_proj",)

    def layers(self, name: str, module: Any) -> list[Layer]:
        """Those with trainable parameters."""
        if module.bias_k is not None or module.in_proj_weight is None:
            raise NotYetSupportedError(
                f"{name or 'the model'} is a MultiheadAttention with add_bias_kv, or with kdim or vdim of their own, "
                "which can't be sliced yet; use equal sizes and add_bias_kv=False."
            )
        size: int = module.embed_dim
        parts: dict[str, tuple[LayerKind, tuple[Rows, ...]]] = {}
        for index, letter in enumerate("qkv"):
            third = UnitView(_third(index, size))
            views = {"in_proj_weight": third, "in_proj_bias": third}
            parts[f"{letter}_proj"] = InputProjection(index), trainable_parts(name, module, views)
        output = parameter_name(name, "out_proj")
        whole = {"weight": UnitView(), "bias": UnitView()}
        parts["out_proj"] = OutputProjection(), trainable_parts(output, module.out_proj, whole)
        return [Layer(parameter_name(name, key), kind, size, own, name) for key, (kind, own) in parts.items() if own]


def _third(index: int, size: int) -> View:
    return lambda packed: packed[index * size : (index + 1) * size]
