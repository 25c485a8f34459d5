"""Kept curvature of a model that is sharded: each process looks after some layers, and knows those alone.

All processes send all samples through the model, in step. Each keeps what belongs to its own layers: their Kronecker
factors, their part of the exact rows S, and in a solve their part of the gradient. What ties layers together is
S K⁻¹ Sᵀ and S K⁻¹ g, small sums over layers, which processes add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from excise import processes
from excise.curvature.factors import Diagonal, KroneckerFactors, LayerCurvature
from excise.curvature.kfac import ROWS_PER_SAMPLE, KroneckerPlusRows, draw_rows, few_and_many
from excise.curvature.layer_statistics import factors_of, inputs_of_layers, output_factors
from excise.curvature.rows import DenseRows, Rows
from excise.curvature.whitened import WhitenedRows
from excise.processes.shares import assigned
from excise.slices.layers import Layer
from excise.slices.slices import Block, LayerBlock, Slices
from excise.task.sharded import resharded, shapes_of, whole, without_gradients
from excise.task.task import Task


@dataclass(frozen=True)
class OwnLayers:
    """Which layers a process looks after."""

    numbers: tuple[int, ...]
    owners: tuple[int, ...]
    """Of every layer of the model: the rank of its process."""

    @staticmethod
    def of(model: nn.Module, slices: Slices) -> OwnLayers:
        """So that what all keep is about as large."""
        group = processes.working_group()
        size, rank = (1, 0) if group is None else (group.size, group.rank)
        weights = dict(model.named_parameters())
        shares = assigned([_values_kept(layer, model, weights) for layer in slices.layers], size)
        owners = {number: owner for owner, some in enumerate(shares) for number in some}
        return OwnLayers(tuple(shares[rank]), tuple(owners[number] for number in range(len(slices.layers))))


def _values_kept(layer: Layer, model: nn.Module, weights: Mapping[str, Tensor]) -> float:
    """About how many for a layer: exact rows and gradients; where there is a factor B, this and its eigenvectors."""
    values = sum(weights[part.parameter].numel() for part in layer.parts)
    module = model.get_submodule(layer.module)
    units = layer.type.kfac_outputs(module) if layer.type.has_kfac(module) else 0
    return 3.0 * values + 4.0 * units**2


@dataclass(frozen=True)
class ShardedCurvature:
    """The kept curvature of this process's layers."""

    own: OwnLayers
    kept: KroneckerPlusRows
    """Of these layers, in their order."""
    damping: float

    def solve(self, block: Block, gradient: Mapping[int, Tensor], *, without: Collection[int]) -> dict[int, Tensor]:
        """(C_PP + damping I)⁻¹ gradient of this process's layers, each a matrix of units × width; all must ask."""
        mine = [chosen for chosen in block.chosen if chosen.layer in self.own.numbers]
        part = Block(tuple(replace(one, layer=self.own.numbers.index(one.layer)) for one in mine))
        by = self.kept.whitenings(part, self.damping)
        rows = [self.kept.rows[chosen.layer].of_units(chosen.units) for chosen in part.chosen]
        exact = WhitenedRows.of(by, rows)
        right = WhitenedRows.of(by, [DenseRows(gradient[chosen.layer][None]) for chosen in mine])
        count = len(self.kept.samples)
        sums = (
            [exact.kernel(exact), exact.kernel(right)] if mine else [torch.zeros(count, n).double() for n in (count, 1)]
        )
        with processes.across():
            gram, along = processes.total(sums, "sums over layers")
        weights = self.kept.weights_of_rows(gram, along[:, 0], without)
        return {
            chosen.layer: whitening.solved(own, torch.ones(1).to(whitening.along))
            - whitening.solved(kept, weights.to(whitening.along))
            for chosen, whitening, own, kept in zip(mine, by, right.layers, exact.layers, strict=True)
        }


def sharded_cache(
    task: Task,
    model: nn.Module,
    slices: Slices,
    ids: Tensor,
    *,
    rank: int,
    rows: int,
    exact: int,
    damping: float,
    seed: int,
) -> ShardedCurvature:
    """The same curvature as ``kfac.cache``, of which each process makes the part of its own layers."""
    own = OwnLayers.of(model, slices)
    most = task.batch_size_within_memory(64)
    size = max(1, most // processes.shards())
    generator = torch.Generator().manual_seed(seed)
    samples, cotangents = draw_rows(task, model, ids, min(rows, ROWS_PER_SAMPLE * len(ids)), generator)
    few, many = few_and_many(model, cotangents, exact)
    modules = dict(model.named_modules())
    seen = [number for number, layer in enumerate(slices.layers) if layer.type.has_kfac(modules[layer.module])]
    layers = [slices.layers[number] for number in seen]
    keep = [place for place, number in enumerate(seen) if number in own.numbers]
    inputs = inputs_of_layers(task, model, layers, ids, generator, most, keep=keep)  # places are drawn for each batch
    outputs = output_factors(task, model, layers, samples[many], cotangents[many], most, keep=keep, at_once=size)
    factors: dict[int, LayerCurvature] = {}
    for place, a, b in zip(keep, inputs, outputs, strict=True):
        factors[seen[place]] = _on_its_own(factors_of(layers[place], a, b, rank))
    blocks = slices.block(range(len(slices))).chosen
    unseen = [number for number in range(len(blocks)) if number not in seen]
    factors |= _diagonals(task, model, blocks, unseen, own, samples[many], cotangents[many])
    kept = KroneckerPlusRows(
        factors=tuple(factors[number] for number in own.numbers),
        rows=tuple(_exact_rows(task, model, blocks, own, samples[few], cotangents[few])),
        samples=samples[few],
    )
    return ShardedCurvature(own, kept, damping)


def _on_its_own(factors: KroneckerFactors) -> KroneckerFactors:
    """Without what the eigenvectors are a part of, which would be kept along."""
    return replace(factors, input_eigenvectors=factors.input_eigenvectors.clone())


def _exact_rows(
    task: Task,
    model: nn.Module,
    blocks: Sequence[LayerBlock],
    own: OwnLayers,
    samples: Tensor,
    cotangents: Tensor,
) -> Iterator[Rows]:
    """Rows of this process's layers, by a backward pass for each sample."""
    found: dict[int, list[Tensor]] = {number: [] for number in own.numbers}
    for sample, cotangent in zip(samples, cotangents, strict=True):
        _backwards(task, model, int(sample), cotangent)
        for number, matrix in layers_of_gradient(model, blocks, own.numbers):
            found[number].append(matrix)
    without_gradients(model)
    like = shapes_of(model)
    for number in own.numbers:
        some = found[number]
        yield DenseRows(torch.stack(some) if some else torch.zeros(0, *blocks[number].shape(like)))


def _diagonals(
    task: Task,
    model: nn.Module,
    blocks: Sequence[LayerBlock],
    unseen: Sequence[int],
    own: OwnLayers,
    samples: Tensor,
    cotangents: Tensor,
) -> dict[int, Diagonal]:
    """Σ v² of this process's layers among those whose inputs and outputs can't be seen."""
    if not unseen:
        return {}
    like = shapes_of(model)
    wanted = [blocks[number] for number in unseen]
    sums = {one.layer: torch.zeros(one.shape(like)).double() for one in wanted if one.layer in own.numbers}
    for sample, cotangent in zip(samples, cotangents, strict=True):
        _backwards(task, model, int(sample), cotangent)
        for number, matrix in layers_of_gradient(model, wanted, own.numbers):
            sums[number] += matrix.double() ** 2
    without_gradients(model)
    return {number: Diagonal(one.to(cotangents.dtype)) for number, one in sums.items()}


def _backwards(task: Task, model: nn.Module, sample: int, cotangent: Tensor) -> None:
    """Put Jᵀu of a sample into the parameters' gradients, of which each process gets its part."""
    without_gradients(model)
    with torch.enable_grad():
        outputs = task.outputs(model, task.batch([sample]))[0]
    outputs.backward(cotangent[None])


def layers_of_gradient(
    model: nn.Module, blocks: Sequence[LayerBlock], keep: Collection[int]
) -> Iterator[tuple[int, Tensor]]:
    """The gradients of layers, put together one after the other; those to keep, by number, as units × width."""
    weights = dict(resharded(model).named_parameters())
    for block in blocks:
        tensors = {}
        for rows in block.parts:
            weight = weights[rows.parameter]
            tensors[rows.parameter] = whole(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        if block.layer in keep:
            yield block.layer, block.take(tensors)
