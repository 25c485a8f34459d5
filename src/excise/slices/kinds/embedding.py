"""Embeddings: a slice is the row of one token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from excise.slices.layers import LayerKind, layer_kind


@layer_kind(nn.Embedding)
class Embedding(LayerKind):
    """``nn.Embedding``, of tokens, positions or anything else that is counted."""

    name = "embedding"
    looks_up = True

    def units(self, module: Any) -> int:
        """Rows."""
        return int(module.num_embeddings)

    def has_kfac(self, module: Any) -> bool:
        """Unless the module makes its ids itself, from a mask or a shape, or does more than to look them up."""
        return type(module).forward is nn.Embedding.forward

    def kfac_inputs(self, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
        """How often each row is looked up."""
        weight: Tensor = module.weight
        return torch.bincount(inputs.flatten(), minlength=self.units(module)).to(weight)

    def kfac_outputs(self, module: Any) -> int:
        """Length of a row."""
        return int(module.embedding_dim)
