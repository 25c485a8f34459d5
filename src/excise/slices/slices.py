"""Slices: the weights that feed one output unit of a layer. Names <-> numbers <-> parameters.

A slice is a row of a Linear layer, a filter of a convolution, a row of an embedding: all that the unit computes its
linear activation with. Every parameter of a layer can be viewed with its units as the first axis (``Rows``); what else
differs from one kind of layer to the other is in ``layers``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.errors import NeverSupportedError, NotYetSupportedError
from excise.slices import kinds as kinds  # makes them known
from excise.slices.layers import Layer, Rows, kind_of, parameter_name
from excise.task.parameters import Tensors, trainable


@dataclass(frozen=True)
class Slices:
    """All slices of a model, numbered layer by layer in the order of its modules."""

    layers: tuple[Layer, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """How many slices come before each layer, and how many there are."""
        offsets = [0]
        for layer in self.layers:
            offsets.append(offsets[-1] + layer.units)
        return tuple(offsets)

    def __len__(self) -> int:
        return sum(layer.units for layer in self.layers)

    def name(self, number: int) -> str:
        """Readable name of a slice."""
        layer, unit = self.locate(number)
        return self.layers[layer].slice_name(unit)

    def locate(self, number: int) -> tuple[int, int]:
        """Layer and unit of a slice."""
        for layer, (low, high) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
            if low <= number < high:
                return layer, number - low
        raise IndexError(f"slice {number} of {len(self)}")

    def block(self, chosen: Iterable[int]) -> Block:
        """The block of the chosen slices, by their numbers."""
        numbers = torch.tensor(sorted(set(chosen)), dtype=torch.long)
        offsets = torch.tensor(self.offsets)
        which = torch.searchsorted(offsets, numbers, right=True) - 1
        return Block(
            tuple(
                LayerBlock(index, numbers[which == index] - offsets[index], self.layers[index].parts)
                for index in which.unique().tolist()
            )
        )


@dataclass(frozen=True)
class LayerBlock:
    """Some units of one layer; their weights are a matrix with a row for each unit."""

    layer: int
    """Number of the layer in its ``Slices``."""
    units: Tensor
    parts: tuple[Rows, ...]

    def take(self, tensors: Tensors) -> Tensor:
        """The matrix, from tensors that are shaped like the parameters."""
        return torch.cat([rows.take(tensors[rows.parameter], self.units) for rows in self.parts], dim=1)

    def put(self, tensors: Tensors, matrix: Tensor) -> None:
        """Set the units' weights in place."""
        for rows, values in zip(self.parts, matrix.split(self.widths(tensors), dim=1), strict=True):
            rows.put(tensors[rows.parameter], self.units, values)

    def widths(self, tensors: Tensors) -> list[int]:
        """How many columns of the matrix each part has."""
        return [rows.take(tensors[rows.parameter], self.units[:1]).numel() for rows in self.parts]

    def shape(self, tensors: Tensors) -> tuple[int, int]:
        """Units and weights of each."""
        return len(self.units), sum(self.widths(tensors))


@dataclass(frozen=True)
class Block:
    """A part of a model's parameters, as one vector."""

    chosen: tuple[LayerBlock, ...]
    whole: tuple[str, ...] = ()
    """Parameters that belong to it as a whole, such as those of normalisation layers."""

    def gather(self, tensors: Tensors) -> Tensor:
        """The block's entries of tensors that are shaped like the parameters, as a vector."""
        pieces = [chosen.take(tensors).reshape(-1) for chosen in self.chosen]
        pieces += [tensors[name].reshape(-1) for name in self.whole]
        return torch.cat(pieces)

    def scatter(self, vector: Tensor, like: Tensors) -> dict[str, Tensor]:
        """Tensors shaped like the parameters that hold the vector in the block and 0 elsewhere."""
        out = {name: torch.zeros_like(tensor, memory_format=torch.contiguous_format) for name, tensor in like.items()}
        pieces = vector.split(self._sizes(like))
        for chosen, piece in zip(self.chosen, pieces, strict=False):
            chosen.put(out, piece.reshape(chosen.shape(like)))
        for name, piece in zip(self.whole, pieces[len(self.chosen) :], strict=True):
            out[name].copy_(piece.reshape(out[name].shape))
        return out

    def size(self, like: Tensors) -> int:
        """How many parameters it has."""
        return sum(self._sizes(like))

    def _sizes(self, like: Tensors) -> list[int]:
        sizes = [math.prod(chosen.shape(like)) for chosen in self.chosen]
        return sizes + [like[name].numel() for name in self.whole]


def whole_model_block(model: nn.Module) -> Block:
    """The block of all trainable parameters."""
    return Block(chosen=(), whole=tuple(trainable(model)))


def find_slices(model: nn.Module) -> Slices:
    """All slices of the trainable layers; a model that would not be treated right is refused, naming the module."""
    _refuse_shared_parameters(model)
    layers: list[Layer] = []
    owned: set[str] = set()
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None:
            _refuse_unknown(name, module)
        elif name not in owned:
            layers += kind.layers(name, module)
            owned |= {parameter_name(name, child) for child in kind.owns}
    if not layers:
        raise NeverSupportedError(
            "the model has no trainable Linear, convolution, embedding or attention layer, so it has no slices; "
            "use Drift() (--method drift), which needs none."
        )
    return Slices(tuple(layers))


def _refuse_unknown(name: str, module: nn.Module) -> None:
    """Refuse layers whose weights should have slices; others, such as normalisation, have none and stay."""
    unsliced = isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.Bilinear | nn.EmbeddingBag)
    if unsliced and any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        raise NotYetSupportedError(
            f"{name or 'the model'} is a {type(module).__name__}, whose weights can't be sliced yet; "
            "use Drift() (--method drift), which needs no slices, or freeze its parameters (requires_grad_(False)) to "
            "update the rest of the model."
        )


def _refuse_shared_parameters(model: nn.Module) -> None:
    """Two modules with one weight have two activations for each of its units, and no rule which one counts.

    One module in two places is such a pair too.
    """
    owner: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            full = parameter_name(name, key)
            if id(parameter) in owner:
                raise NotYetSupportedError(
                    f"{full} and {owner[id(parameter)]} are one tied parameter, which can't be sliced yet; "
                    "use Drift() (--method drift), which needs no slices, freeze it (requires_grad_(False)), or untie "
                    "it by cloning one of them."
                )
            owner[id(parameter)] = full
