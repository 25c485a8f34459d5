"""Kinds of layers: all that the package has to know about ``nn.Linear`` and its like, and how to teach it another one.

A kind is one class with the decorator ``layer_kind``. For a layer of your own:

    @layer_kind(MyLinear)
    class MyLinearKind(LayerKind):
        name = "my linear"
        features_axis = -1

        def units(self, module):
            return module.out_features

That is enough to choose its slices and to update them. Where ``has_kfac`` says so, its curvature is kept as Kronecker
factors; otherwise as a diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from excise.task.hooks import Call

View = Callable[[Tensor], Tensor]


def as_it_is(tensor: Tensor) -> Tensor:
    """The view of a parameter whose first axis is its units."""
    return tensor


@dataclass(frozen=True)
class UnitView:
    """How a parameter of a module splits into units: a view (never a copy) of it with the units first."""

    view: View = as_it_is
    units_per_group: int | None = None
    """For grouped transposed convolutions, whose view has two unit axes, group and unit within it."""


@dataclass(frozen=True)
class Rows:
    """A parameter of a model, and how it splits into units."""

    parameter: str
    """Full name of the parameter in the model."""
    split: UnitView

    def take(self, tensor: Tensor, units: Tensor) -> Tensor:
        """The units' weights, one row each."""
        return self.split.view(tensor)[self._where(units.to(tensor.device))].reshape(len(units), -1)

    def put(self, tensor: Tensor, units: Tensor, values: Tensor) -> None:
        """Set the units' weights in place."""
        view, where = self.split.view(tensor), self._where(units.to(tensor.device))
        view[where] = values.reshape(len(units), *view.shape[len(where) :]).to(view)

    def width(self, tensor: Tensor, units: int) -> int:
        """How many weights a unit has."""
        return self.split.view(tensor).numel() // units

    def _where(self, units: Tensor) -> tuple[Tensor, ...]:
        group = self.split.units_per_group
        return (units,) if group is None else (units // group, units % group)


@dataclass(frozen=True)
class Layer:
    """A module that has slices, or a part of one."""

    name: str
    type: LayerKind
    units: int
    parts: tuple[Rows, ...]
    """The trainable parameters; frozen ones are no part of any slice."""
    module: str
    """Name of the module whose calls show the units' activations."""

    @property
    def kind(self) -> str:
        """What the layer is called, such as ``convolution``."""
        return self.type.name

    def columns(self, vectors: Tensor) -> Tensor:
        """What all trainable weights of a slice are multiplied with: vectors for ``weight``, 1 for a bias."""
        names = [rows.parameter.rpartition(".")[2] for rows in self.parts]
        pieces = [vectors if name == "weight" else torch.ones_like(vectors[..., :1]) for name in names]
        return torch.cat(pieces, dim=-1)

    def slice_name(self, unit: int) -> str:
        """Readable name of a slice, such as ``layer3.0.conv2[17]``."""
        return f"{self.name}[{unit}]"


class LayerKind:
    """What the package asks of a kind of layer; most kinds answer three or four of these questions."""

    name: ClassVar[str]
    """What the layers are called, for people."""
    features_axis: ClassVar[int | None] = None
    """The axis of inputs and outputs that has the features; the samples' is the first, and all others are places.

    None where the layer's input is not one tensor of features.
    """
    is_linear_head: ClassVar[bool] = False
    """Whether the layer's outputs are linear in its weights, with ``weight`` and ``bias`` the columns of a slice."""
    looks_up: ClassVar[bool] = False
    """Whether its units are rows that ``functional.embedding`` looks up; they are watched by how often it does."""
    has_places: ClassVar[bool] = True
    """Whether the units' weights are used at several places of a sample, as filters are."""
    draws_places: ClassVar[bool] = False
    """Whether ``kfac_inputs`` draws some of these at random."""
    owns: ClassVar[tuple[str, ...]] = ()
    """Submodules whose weights the module uses without calling them; their layers are for this kind to name."""

    def fits(self, module: Any) -> bool:
        """Whether the module is of this kind; asked when its class is."""
        return True

    def units(self, module: Any) -> int:
        """How many units (slices) the module has."""
        raise NotImplementedError

    def views(self, module: Any) -> Mapping[str, UnitView]:
        """How each parameter splits into units; parameters that the module does not have are passed over."""
        return {"weight": UnitView(), "bias": UnitView()}

    def layers(self, name: str, module: Any) -> list[Layer]:
        """The layers with trainable parameters: one, or none."""
        parts = trainable_parts(name, module, self.views(module))
        return [Layer(name or "(model)", self, self.units(module), parts, name)] if parts else []

    def activations(self, call: Call, mask: Tensor | None) -> Tensor:
        """What the units did in a call: one row for each of its outputs' first axis, the mean over places.

        Args:
            call: The call of the layer's module.
            mask: 0 where the tokens of the sample are padding, 1 × tokens; no mean includes these.
        """
        output: Tensor = call.output
        if output.ndim == 2:
            return output.clone()
        if self.features_axis == 1:
            return output.flatten(2).mT.mean(1)
        return mean_of_tokens(output.flatten(1, -2), mask)

    def has_kfac(self, module: Any) -> bool:
        """Whether ``kfac_inputs`` is known."""
        return False

    def kfac_inputs(self, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
        """The vectors a that a unit's ``weight`` is multiplied with, one a row.

        Of kinds that look up: how often each row is.

        Args:
            module: The module.
            inputs: The first argument of a call.
            places: How many places of each sample to take, at the most.
            generator: For the choice of places.
        """
        raise NotImplementedError

    def vectors(self, module: Any, inputs: Tensor) -> Tensor | None:
        """The same at all places, sample by sample: samples × places × groups × width of a unit's ``weight``.

        None where they are not known; gradients of samples are then computed one after the other.
        """
        return None

    def kfac_output_gradients(self, gradient: Tensor) -> Tensor:
        """The gradients δ at the units' outputs, one row a place, from the gradient at the module's output."""
        axis = -1 if self.features_axis is None else self.features_axis
        gradient = gradient.movedim(axis, -1)
        return gradient.reshape(-1, gradient.shape[-1])

    def kfac_outputs(self, module: Any) -> int:
        """How many features the module's output has."""
        return self.units(module)


KINDS: dict[type[nn.Module] | str, LayerKind] = {}
"""Kinds by the class of modules, or by its name."""
Kind = TypeVar("Kind", bound=LayerKind)


def layer_kind(*classes: type[nn.Module] | str) -> Callable[[type[Kind]], type[Kind]]:
    """Make a kind known for modules of these classes and what is derived from them; the nearest class decides.

    A class of a package that need not be installed is given by its name.
    """

    def register(kind: type[Kind]) -> type[Kind]:
        for one in classes:
            KINDS[one] = kind()
        return kind

    return register


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind of a module; None for one that has no slices."""
    for ancestor in type(module).__mro__:
        kind = KINDS.get(ancestor) or KINDS.get(ancestor.__name__)
        if kind is not None and kind.fits(module):
            return kind
    return None


def trainable_parts(name: str, module: Any, views: Mapping[str, UnitView]) -> tuple[Rows, ...]:
    """The module's trainable parameters among those that have a view."""
    found = {key: getattr(module, key, None) for key in views}
    return tuple(
        Rows(parameter_name(name, key), views[key])
        for key, parameter in found.items()
        if isinstance(parameter, nn.Parameter) and parameter.requires_grad
    )


def parameter_name(module: str, key: str) -> str:
    """Full name of a module's parameter."""
    return f"{module}.{key}" if module else key


def mean_of_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the second axis; where that is the sample's tokens, without padding."""
    if mask is None or values.shape[1] != mask.shape[1]:
        return values.mean(1)
    return (values * mask[:, :, None]).sum(1) / mask.sum()
