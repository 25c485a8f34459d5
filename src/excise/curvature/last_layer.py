"""Curvature of models whose only trainable layer is the linear output layer, exactly and from all samples at once.

Then the outputs are W a, with a the layer's inputs, which stay as they are, and the curvature's product with a matrix V
is the mean of ∇²ℓ(Wa) V a aᵀ: a few multiplications of matrices, once the a are kept. Convex models, where a step
should be as good as retraining, are of this kind.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from excise.curvature.operators import Operator
from excise.slices.slices import Block, Slices
from excise.task.hooks import Call, capture
from excise.task.parameters import trainable
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task


@dataclass(frozen=True)
class LastLayerInputs:
    """What the output layer sees of some samples."""

    ids: Tensor
    inputs: Tensor
    """Input of the layer, samples × inputs."""
    targets: Tensor
    layer: str
    """Name of the layer's module."""
    columns: tuple[str, ...]
    """What the columns of a block's matrix belong to: weight and bias, or one of them."""

    def to(self, device: torch.device) -> LastLayerInputs:
        """The same on another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def curvature(self, task: Task, model: nn.Module, block: Block, without: Collection[int] = ()) -> Operator:
        """Curvature of the mean loss over these samples, except for some, on the block."""
        kept = ~torch.isin(self.ids, torch.tensor(list(without), dtype=torch.long)).to(self.inputs.device)
        weight = kept.to(self.inputs) / int(kept.sum())
        with torch.no_grad():
            outputs = model.get_submodule(self.layer)(self.inputs)
        (chosen,) = block.chosen
        units = chosen.units.to(self.inputs.device)

        at = outputs.requires_grad_()
        with torch.enable_grad():
            losses = task.sample_losses(at, self.targets)
            (gradients,) = torch.autograd.grad((losses * weight).sum(), at, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            matrix = vector.reshape(len(units), -1)
            along = torch.zeros_like(outputs)
            along[:, units] = self._times(matrix)
            # the loss's second derivatives are symmetric, so that going backwards once more multiplies with them
            (bent,) = torch.autograd.grad(gradients, at, along, retain_graph=True, materialize_grads=True)
            return self._transposed_times(bent[:, units]).reshape(-1)

        return Operator(len(units) * self._width, product)

    @property
    def _width(self) -> int:
        return sum(self.inputs.shape[1] if name == "weight" else 1 for name in self.columns)

    def _times(self, matrix: Tensor) -> Tensor:
        """A Vᵀ, samples × units."""
        parts = [
            self.inputs @ matrix[:, : self.inputs.shape[1]].T if name == "weight" else matrix[:, -1]
            for name in self.columns
        ]
        return sum(parts[1:], parts[0])

    def _transposed_times(self, bent: Tensor) -> Tensor:
        """The same with the transpose: units × width."""
        parts = [bent.T @ self.inputs if name == "weight" else bent.sum(0)[:, None] for name in self.columns]
        return torch.cat(parts, dim=1)


def last_layer_inputs(task: Task, model: nn.Module, slices: Slices, ids: Tensor) -> LastLayerInputs | None:
    """What the only trained layer sees of the samples, by one pass; None where its outputs are not the model's."""
    (layer,) = slices.layers
    width = int(getattr(model.get_submodule(layer.module), "in_features", 1))

    def watch(call: Call) -> tuple[Tensor, Tensor]:
        return call.input, call.output.clone()  # what follows may work in place

    def of_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad(), capture(model, [layer.module], watch) as (calls,):
            said, wanted = task.outputs(model, batch)
        # of every sample: a ReLU that follows may be the identity on the first ones
        right = len(calls) == 1 and torch.equal(calls[0][1], said)
        seen = calls[0][0] if calls else said.new_zeros(len(said), width)
        return seen, wanted, torch.full((len(wanted),), right)

    inputs, targets, right = rows_over(task, ids, of_batch, 1024, "inputs of the last layer")
    if not bool(right.all()):
        return None
    names = tuple(rows.parameter.rpartition(".")[2] for rows in layer.parts)
    return LastLayerInputs(ids.cpu(), inputs, targets, layer.module, names)


def trains_only_last_layer(task: Task, model: nn.Module, slices: Slices) -> bool:
    """Whether the linear output layer is all that is trained, as far as the first samples tell."""
    if len(slices.layers) != 1 or not slices.layers[0].type.is_linear_head:
        return False
    layer = slices.layers[0]
    return len(trainable(model)) == len(layer.parts) and task.ends_in(model.get_submodule(layer.module))
