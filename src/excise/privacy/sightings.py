"""What a linear layer sees of a batch, and whether it sees the same with other weights and in other company."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from excise import processes
from excise.privacy.watching import WeightWatch
from excise.task.hooks import Call, capture
from excise.task.task import Batch, Task

ALIKE = 1e-4  # as a share of their size, by which what the layer sees may differ in other batches
LOG_PROBABILITY = 1e-5
COMPUTED = ("rows", "trained_rows", "exact", "reach")
"""Of a sighting, when they are first asked for."""


@dataclass(frozen=True)
class Sighting:
    """What a model and its linear layer did with a batch of samples."""

    layer: nn.Linear
    calls: int
    inputs: Tensor
    """The layer's, as they were."""
    layer_outputs: Tensor
    outputs: Tensor
    """The model's."""
    targets: Tensor
    depends: bool
    """Whether autograd knows that the inputs depend on trained weights."""
    used_outside: bool
    """Whether anything but the layer looked at its weights."""
    moved: Tensor
    """By how much, for each sample, the inputs differed in other batches."""

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return len(self.targets)

    @cached_property
    def rows(self) -> Tensor:
        """The inputs, exactly: samples × rows of a sample × features."""
        return self.inputs.double().reshape(self.samples, -1, self.layer.in_features)

    @cached_property
    def trained_rows(self) -> Tensor:
        """The same as far as trained weights act on them, with a 1 for a bias."""
        rows = self.rows
        ones = torch.ones_like(rows[..., :1])
        bias = self.layer.bias is not None and self.layer.bias.requires_grad
        own = rows if self.layer.weight.requires_grad else rows[..., :0]
        return torch.cat([own, ones], -1) if bias else own

    @cached_property
    def exact(self) -> Tensor:
        """The layer's outputs, computed anew in double precision, in the shape of the model's."""
        return self._linear(absolute=False).reshape(self.outputs.shape)

    @cached_property
    def reach(self) -> Tensor:
        """|W||a| + |b|, which all rounding of the outputs is a share of."""
        return self._linear(absolute=True)

    def with_moved(self, moved: Tensor) -> Sighting:
        """The same with another ``moved``; what was computed of it stays."""
        other = replace(self, moved=moved)
        vars(other).update({name: value for name, value in vars(self).items() if name in COMPUTED})
        return other

    def bare(self) -> Sighting:
        """The same without what was computed of it, to be kept."""
        return replace(self)

    def gaps(self, task: Task) -> Tensor:
        """Outputs minus targets, where there is one of these for each."""
        targets = task.plain_targets(self.targets).double()
        return (self.exact - targets.reshape(self.exact.shape)).reshape(self.samples, -1)

    def shares(self, task: Task) -> Tensor:
        """How much each sample counts: 1, unless the targets carry weights."""
        if task.weighting is None:
            return torch.ones(self.samples, dtype=torch.float64, device=self.targets.device)
        return task.weighting.weights(self.targets).double()

    def losses(self, task: Task, outputs: Tensor) -> Tensor:
        """The samples' losses, in double precision."""
        targets = self.targets.double() if self.targets.is_floating_point() else self.targets
        return task.sample_losses(outputs, targets)

    def slopes(self, task: Task) -> Tensor:
        """The gradients of the samples' losses by the layer's outputs: samples × rows of a sample × outputs."""
        with torch.enable_grad():
            outputs = self.exact.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.losses(task, outputs).sum(), outputs)
        return found.reshape(self.samples, -1, self.layer.out_features)

    def _linear(self, *, absolute: bool) -> Tensor:
        weight = self.layer.weight.detach().double()
        bias = None if self.layer.bias is None else self.layer.bias.detach().double()
        if not absolute:
            return nn.functional.linear(self.rows, weight, bias)
        return nn.functional.linear(self.rows.abs(), weight.abs(), None if bias is None else bias.abs())


@dataclass(frozen=True)
class Head:
    """A model and the linear layer that is all of it that is trained."""

    model: nn.Module
    layer: nn.Linear


def sight(task: Task, head: Head, batch: Batch) -> Sighting:
    """What a model does with the batch."""
    layer = head.layer

    def watch(call: Call) -> tuple[Tensor, Tensor, bool]:
        return call.input.detach().clone(), call.output.detach().clone(), call.input.requires_grad

    # with gradients, so that inputs tell whether they come from trained weights
    weights = WeightWatch(layer)
    with torch.enable_grad(), capture(layer, [""], watch) as (calls,), weights:
        outputs, targets = task.outputs(head.model, copy.deepcopy(batch))  # which it may change
    empty = (torch.empty(0), torch.empty(0), False)
    inputs, own, depends = calls[0] if calls else empty
    return Sighting(
        layer,
        len(calls),
        inputs,
        own,
        outputs.detach(),
        targets.detach(),
        depends,
        bool(weights.other_uses) or weights.own_uses > len(calls),
        torch.zeros(len(targets)).to(own),
    )


def of_all_processes(seen: Sequence[Sighting]) -> list[Sighting]:
    """What the layer saw in other processes too, in one piece."""
    each = [(one.inputs, one.layer_outputs, one.outputs, one.targets, one.moved) for one in seen]
    rows = [torch.cat(parts) for parts in zip(*each, strict=True)]
    inputs, own, outputs, targets, moved = processes.gathered_rows(rows, "what the layer sees")
    return [replace(seen[0], inputs=inputs, layer_outputs=own, outputs=outputs, targets=targets, moved=moved)]


def disagreement(task: Task, one: Sighting, other: Sighting) -> str | None:
    """Why the layer's outputs, by its own weights and by others, are not the model's; None if they are."""
    if one.calls != 1 or other.calls != 1:
        return "the linear layer is not called once, but several times or never"
    if type(one.inputs) is not Tensor or not one.inputs.is_floating_point() or one.inputs.layout != torch.strided:
        return "what the linear layer sees is no plain tensor of real numbers"
    same = one.inputs.shape == other.inputs.shape and _equal(one.inputs, other.inputs)
    if not (same and _equal(one.targets, other.targets)) or one.depends or other.depends:
        return "what the linear layer sees depends on its own weights, or the data differ from reading to reading"
    if one.inputs.numel() % (one.samples * one.layer.in_features):
        return "the linear layer does not see the same number of rows of every sample"
    if not (_are_outputs(task, one) and _are_outputs(task, other)):
        return "the model's outputs are not those of the linear layer"
    if one.used_outside or other.used_outside:
        return "the trained weights are looked at or changed outside of their layer"
    return None


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same, NaN included, which is told of elsewhere."""
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)


def _are_outputs(task: Task, seen: Sighting) -> bool:
    """Whether the model's outputs are the layer's, or for ``NLLLoss`` the log-probabilities of these.

    And whether the layer's are what its weights make of its inputs, up to rounding.
    """
    own, outputs = seen.layer_outputs, seen.outputs
    if own.numel() != outputs.numel() or type(outputs) is not Tensor or not outputs.is_floating_point():
        return False
    if not own.isfinite().all():  # which is told of elsewhere
        return True
    precision = torch.finfo(own.dtype).eps
    if own.is_cuda:
        precision = max(precision, 2.0**-10)  # of products on tensor cores
    room = 2 * (seen.layer.in_features + 2) * precision * seen.reach.reshape(own.shape)
    if not bool(((own.double() - seen.exact.reshape(own.shape)).abs() <= room + 1e-30).all()):
        return False
    if isinstance(task.loss_module, nn.NLLLoss):
        return torch.allclose(outputs, own.log_softmax(-1).reshape(outputs.shape), rtol=0, atol=LOG_PROBABILITY)
    return torch.equal(own.reshape(outputs.shape), outputs)


def seen_again(task: Task, head: Head, places: Tensor, ids: Tensor, first: Sighting) -> Sighting | str:
    """The sighting with how much a second reading differed, in other batches and another order; or that it did much."""
    changed = "what the linear layer sees differs from reading to reading, or depends on a sample's company in a batch"
    alone = len(places) == 1 and len(ids) > 1
    order = torch.cat([places, ids[:1] if ids[0] != places[0] else ids[1:2]]) if alone else places.flip(0)
    parts = (order,) if alone else order.split(max(1, len(order) // 2))
    try:
        again = [sight(task, head, task.batch(part)) for part in parts]
    except (RuntimeError, ValueError, IndexError):
        return "the model fails on batches of another size"
    shape = first.rows.shape[1:]
    if any(one.calls != 1 or one.inputs.numel() != one.samples * shape.numel() for one in again):
        return changed
    rows, targets = torch.cat([one.rows for one in again]), torch.cat([one.targets for one in again])
    rows, targets = (rows[:1], targets[:1]) if alone else (rows.flip(0), targets.flip(0))
    moved = torch.linalg.vector_norm((rows - first.rows).flatten(1), dim=1)
    largest = torch.linalg.vector_norm(first.rows.flatten(1), dim=1).max()
    if not bool((moved <= ALIKE * largest).all()) or not torch.equal(targets, first.targets):
        return changed
    return first.with_moved(moved)
