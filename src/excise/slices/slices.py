"""Slices: the weights that feed one output unit of a layer. Names <-> numbers <-> parameters.

A slice is a row of a Linear layer, a filter of a convolution, a row of an embedding: all that the unit computes its
linear activation with. Every parameter of a layer can be viewed with its units as the first axis (``Rows``); that is
all that the rest of the package needs to know about kinds of layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excise.errors import NeverSupportedError, NotYetSupportedError

Tensors = Mapping[str, Tensor]
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """How a parameter splits into units: a view (never a copy) of it with the units first."""

    parameter: str
    """Full name of the parameter in the model."""
    view: View
    units_per_group: int | None = None
    """For grouped transposed convolutions, whose view has two unit axes, group and unit within it."""

    def take(self, tensor: Tensor, units: Tensor) -> Tensor:
        """The units' weights, one row each."""
        return self.view(tensor)[self._where(units.to(tensor.device))].reshape(len(units), -1)

    def put(self, tensor: Tensor, units: Tensor, values: Tensor) -> None:
        """Set the units' weights in place."""
        view, where = self.view(tensor), self._where(units.to(tensor.device))
        view[where] = values.reshape(len(units), *view.shape[len(where) :]).to(view)

    def width(self, tensor: Tensor, units: int) -> int:
        """How many weights a unit has."""
        return self.view(tensor).numel() // units

    def _where(self, units: Tensor) -> tuple[Tensor, ...]:
        if self.units_per_group is None:
            return (units,)
        return (units // self.units_per_group, units % self.units_per_group)


@dataclass(frozen=True)
class Layer:
    """A module that has slices."""

    name: str
    kind: str
    units: int
    parts: tuple[Rows, ...]
    """The trainable parameters; frozen ones are no part of any slice."""
    module: str
    """Name of the module whose output, or in attention whose input, shows the units' activations."""

    def slice_name(self, unit: int) -> str:
        """Readable name of a slice, such as ``layer3.0.conv2[17]``."""
        return f"{self.name}[{unit}]"


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
                Chosen(index, numbers[which == index] - offsets[index], self.layers[index].parts)
                for index in which.unique().tolist()
            )
        )


@dataclass(frozen=True)
class Chosen:
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

    chosen: tuple[Chosen, ...]
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


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The model's trainable parameters by name, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def everything(model: nn.Module) -> Block:
    """The block of all trainable parameters."""
    return Block(chosen=(), whole=tuple(trainable(model)))


def find_slices(model: nn.Module) -> Slices:
    """All slices of the trainable layers; a model that would not be treated right is refused, naming the module."""
    _refuse_shared_parameters(model)
    attentions = {name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    layers: list[Layer] = []
    for name, module in model.named_modules():
        if name.rpartition(".")[0] in attentions and name.endswith("out_proj"):
            continue  # called by the attention module itself, without hooks
        layers += _layers_of(name, module)
    if not layers:
        raise NeverSupportedError(
            "the model has no trainable Linear, convolution, embedding or attention layer, so it has no slices."
        )
    return Slices(tuple(layers))


def _layers_of(name: str, module: nn.Module) -> list[Layer]:
    if isinstance(module, nn.MultiheadAttention):
        return _attention(name, module)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return _layer(name, "transposed convolution", module, module.out_channels, *_transposed(module))
    if isinstance(module, nn.modules.conv._ConvNd):
        return _layer(name, "convolution", module, module.out_channels)
    if isinstance(module, nn.Linear):
        return _layer(name, "linear", module, module.out_features)
    if isinstance(module, nn.Embedding):
        return _layer(name, "embedding", module, module.num_embeddings)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # Hugging Face: a Linear, weight transposed
        return _layer(name, "linear", module, int(str(module.nf)), lambda weight: weight.T)
    unsliced = isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.Bilinear | nn.EmbeddingBag)
    if unsliced and any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        raise NotYetSupportedError(
            f"{name or 'the model'} is a {type(module).__name__}, whose weights can't be sliced yet; "
            "freeze its parameters (requires_grad_(False)) to update the rest of the model."
        )
    return []


def _layer(
    name: str,
    kind: str,
    module: nn.Module,
    units: int,
    weight_view: View = lambda weight: weight,
    units_per_group: int | None = None,
) -> list[Layer]:
    parts = []
    if module.weight.requires_grad:
        parts.append(Rows(_join(name, "weight"), weight_view, units_per_group))
    if isinstance(getattr(module, "bias", None), nn.Parameter) and module.bias.requires_grad:
        parts.append(Rows(_join(name, "bias"), lambda bias: bias))
    return [Layer(name or "(model)", kind, units, tuple(parts), name)] if parts else []


def _transposed(module: nn.modules.conv._ConvTransposeNd) -> tuple[View, int | None]:
    """Weights of a transposed convolution are in × (out / groups) × kernel, and a unit has its group's inputs."""
    groups = module.groups
    if groups == 1:
        return lambda weight: weight.transpose(0, 1), None
    return (
        lambda weight: weight.view(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2),
        module.out_channels // groups,
    )


def _attention(name: str, module: nn.MultiheadAttention) -> list[Layer]:
    """The packed projections to query, key and value, and the output projection."""
    if module.bias_k is not None or module.in_proj_weight is None:
        raise NotYetSupportedError(
            f"{name or 'the model'} is a MultiheadAttention with add_bias_kv, or with kdim or vdim of their own, "
            "which can't be sliced yet; use equal sizes and add_bias_kv=False."
        )
    size = module.embed_dim
    layers = []
    for index, part in enumerate("qkv"):
        packed = [
            Rows(_join(name, key), _third(index, size))
            for key in ("in_proj_weight", "in_proj_bias")
            if getattr(module, key) is not None and getattr(module, key).requires_grad
        ]
        if packed:
            layers.append(Layer(_join(name, f"{part}_proj"), "attention projection", size, tuple(packed), name))
    output = _layer(_join(name, "out_proj"), "attention projection", module.out_proj, size)
    return layers + [Layer(layer.name, layer.kind, layer.units, layer.parts, name) for layer in output]


def _third(index: int, size: int) -> View:
    return lambda packed: packed[index * size : (index + 1) * size]


def _refuse_shared_parameters(model: nn.Module) -> None:
    """Two modules with one weight have two activations for each of its units, and no rule which one counts."""
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            if id(parameter) in owner:
                raise NotYetSupportedError(
                    f"{_join(name, key)} and {owner[id(parameter)]} are one tied parameter, which can't be sliced yet; "
                    "freeze it (requires_grad_(False)), or untie it by cloning one of them."
                )
            owner[id(parameter)] = _join(name, key)


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
