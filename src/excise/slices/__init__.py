"""What a network is made of: layers, their slices, and what they put out."""

from excise.slices.layers import Layer, LayerKind, UnitView, layer_kind
from excise.slices.slices import Block, Slices, find_slices, whole_model_block

__all__ = [
    "Block",
    "Layer",
    "LayerKind",
    "Slices",
    "UnitView",
    "find_slices",
    "layer_kind",
    "whole_model_block",
]
