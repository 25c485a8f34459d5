"""What a layer's factors are made of: the vectors that it sees, and the gradients at what it gives (see ``kfac``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from excise import processes
from excise.curvature.backwards import pulled_back
from excise.curvature.factors import Diagonal, KroneckerFactors
from excise.curvature.low_rank import leading_directions
from excise.curvature.sample_rows import Calls, capturing, one_by_one
from excise.errors import InputError
from excise.slices.layers import Layer
from excise.slices.slices import LayerBlock
from excise.task.parameters import trainable
from excise.task.precision import in_single
from excise.task.sharing import sum_of_batches
from excise.task.task import Task

INPUTS = 4096  # vectors a that a layer's A is taken from, at the most: several of each sample, which are alike,
SAMPLES = 2048  # or one of each of so many


def inputs_of_layers(
    task: Task,
    model: nn.Module,
    layers: Sequence[Layer],
    ids: Tensor,
    generator: torch.Generator,
    batch_size: int,
    *,
    keep: Sequence[int] | None = None,
) -> list[Tensor]:
    """For each layer some of the vectors a, one a row; for an embedding how often each token occurs in a sample.

    With ``keep`` those of some layers alone.
    """
    if not layers:
        return []
    has_places = any(layer.type.has_places for layer in layers)
    some = ids[torch.randperm(len(ids), generator=generator)[: INPUTS // 8 if has_places else SAMPLES]]
    places = math.ceil(INPUTS / len(some))
    kept = range(len(layers)) if keep is None else keep
    watched = [number for number, layer in enumerate(layers) if number in kept or layer.type.draws_places]
    names, found = [layers[number] for number in watched], {number: list[Tensor]() for number in kept}
    modules = dict(model.named_modules())
    batches = some.split(batch_size)  # whole ones are shared out, since places are drawn for each
    shared = processes.is_shared(len(some)) and len(batches) >= processes.count()
    mine = processes.share_of(range(len(batches))) if shared else range(len(batches))
    with torch.no_grad(), capturing(model, names) as calls:
        for number in mine:
            count = len(task.outputs(model, task.batch(batches[number]))[0])
            if number == mine[0]:
                _pass_over(number, names, calls, modules, places, generator)
            for place, layer, seen in zip(watched, names, calls, strict=True):
                for inputs, _ in seen:
                    times = count // len(inputs) if layer.type.looks_up else 1  # positions, for all samples
                    vectors = times * _vectors(layer, modules[layer.module], inputs, places, generator)
                    if place in found:
                        found[place].append(vectors)
                seen.clear()
    rows = [_joined(layers[number], found[number]) for number in kept]
    looked_up = [place for place, number in enumerate(kept) if layers[number].type.looks_up]
    if shared:
        rows = _of_all_processes(rows, looked_up)
    return [one / len(some) if place in looked_up else one for place, one in enumerate(rows)]


def _joined(layer: Layer, parts: list[Tensor]) -> Tensor:
    """Of all batches: counts are added up."""
    return sum(parts, torch.zeros_like(parts[0])) if layer.type.looks_up else torch.cat(parts)


def _pass_over(
    batches: int,
    layers: Sequence[Layer],
    calls: Sequence[Calls],
    modules: dict[str, nn.Module],
    places: int,
    generator: torch.Generator,
) -> None:
    """Draw what other processes draw for the batches before, so that all draw what a single one would."""
    for _ in range(batches):
        for layer, seen in zip(layers, calls, strict=True):
            for inputs, _output in seen:
                _vectors(layer, modules[layer.module], inputs[:1], places, generator)


def _of_all_processes(vectors: list[Tensor], summed: Sequence[int]) -> list[Tensor]:
    """Each layer's vectors, or their sums."""
    others = [number for number in range(len(vectors)) if number not in summed]
    found = dict(
        zip(others, processes.gathered_rows([vectors[number] for number in others], "inputs of layers"), strict=True)
    )
    sums = processes.total([vectors[number] for number in summed], "sums of inputs") if summed else []
    found |= dict(zip(summed, sums, strict=True))
    return [found[number] for number in range(len(vectors))]


def _vectors(layer: Layer, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
    """The vectors that a unit's weights are multiplied with, at some of the places of each sample."""
    vectors = in_single(layer.type.kfac_inputs(module, inputs, places, generator))
    return vectors if layer.type.looks_up else layer.columns(vectors)


def output_factors(
    task: Task,
    model: nn.Module,
    layers: Sequence[Layer],
    samples: Tensor,
    cotangents: Tensor,
    batch_size: int,
    *,
    keep: Sequence[int] | None = None,
    at_once: int | None = None,
) -> list[Tensor]:
    """Σ δδᵀ of each layer over the rows, and over the places within each; with ``keep``, of some layers alone.

    What all samples of a batch have in common, such as the output for a position, has one δ for the batch. So the batch
    size counts; ``at_once`` is how many of a batch go through the model together, and changes nothing but memory.
    """
    if not layers:
        return []
    modules, kept = dict(model.named_modules()), range(len(layers)) if keep is None else keep
    sizes = [layers[number].type.kfac_outputs(modules[layers[number].module]) for number in kept]
    zeros = [torch.zeros(size, size).to(cotangents) for size in sizes]

    def of_batch(number: int) -> list[Tensor]:
        rows = slice(number * batch_size, (number + 1) * batch_size)
        pieces = math.ceil(len(samples[rows]) / (at_once or batch_size))
        sums = [torch.zeros_like(zero) for zero in zeros]
        common: dict[tuple[int, int], Tensor] = {}
        for some, given in zip(samples[rows].tensor_split(pieces), cotangents[rows].tensor_split(pieces), strict=True):
            by_layer = _at_outputs(task, model, calls, some, given)
            for place, layer in enumerate(kept):
                for call, one in enumerate(by_layer[layer]):
                    if (place, call) in common or len(one) == 1 < len(some):
                        common[place, call] = common.get((place, call), 0) + one
                    else:
                        sums[place] += _outer(layers[layer], one)
        for (place, _), one in common.items():
            sums[place] += _outer(layers[kept[place]], one)
        return sums

    with torch.enable_grad(), capturing(model, layers) as calls:
        batches = range(math.ceil(len(samples) / batch_size))
        return sum_of_batches(batches, of_batch, "factors of outputs", into=zeros)


def _at_outputs(
    task: Task, model: nn.Module, calls: Sequence[Calls], samples: Tensor, cotangents: Tensor
) -> list[list[Tensor]]:
    """The gradients at all outputs of each layer: of all layers, since other processes may keep the rest."""
    outputs = task.outputs(model, task.batch(samples))[0]
    watched = [output for seen in calls for _, output in seen]
    gradients = iter(pulled_back(outputs, watched, cotangents))
    by_layer = [[next(gradients) for _ in seen] for seen in calls]
    for seen in calls:
        seen.clear()
    return by_layer


def _outer(layer: Layer, gradients: Tensor) -> Tensor:
    """Σ δδᵀ."""
    deltas = in_single(layer.type.kfac_output_gradients(gradients))
    return deltas.T @ deltas


def all_factors(
    layers: Sequence[Layer], inputs: Sequence[Tensor], outputs: Sequence[Tensor], rank: int
) -> list[KroneckerFactors]:
    """Of each layer; several processes do some layers each."""

    def of_layer(given: tuple[Layer, Tensor, Tensor]) -> KroneckerFactors:
        found = factors_of(*given, rank)
        return found.to(torch.device("cpu")) if several else found

    several, given = processes.count() > 1, list(zip(layers, inputs, outputs, strict=True))
    costs = [float(a.numel() + b.numel()) for a, b in zip(inputs, outputs, strict=True)]
    found = processes.each(given, of_layer, "Kronecker factors", costs=costs)
    return [one.to(b.device) for one, b in zip(found, outputs, strict=True)] if several else found


def factors_of(layer: Layer, inputs: Tensor, outputs: Tensor, rank: int) -> KroneckerFactors:
    """B ⊗ A from the vectors a and from Σ δδᵀ, with so many eigenvectors of A."""
    squares = (inputs**2).sum()  # not finite if any value is not, in a twentieth of the time that asking each takes
    if not (squares.isfinite() and outputs.isfinite().all()):
        raise InputError(
            f"the layer {layer.name} gets values, or gives gradients, that are not finite numbers, or too large to be "
            "squared: find the samples that have such values, and leave them out or scale them."
        )
    if layer.type.looks_up:  # a row of its weights is a unit, so that the two sides are exchanged
        values, vectors = torch.linalg.eigh(outputs)
        kept = values.flip(0)[:rank].clamp_min(0), vectors.flip(1)[:, :rank]
        return KroneckerFactors(inputs, *kept, _mean_of_rest(outputs.trace(), kept[0], len(outputs)))
    count, width = inputs.shape
    singular, vectors = leading_directions(inputs, min(rank + 8, count, width))
    values = singular[:rank] ** 2 / count
    rest = _mean_of_rest(squares / count, values, width)
    return KroneckerFactors(outputs, values, vectors[:, :rank], rest)


def _mean_of_rest(trace: Tensor, values: Tensor, width: int) -> float:
    return max(0.0, float(trace - values.sum())) / max(1, width - len(values))


def diagonals(
    task: Task, model: nn.Module, blocks: Sequence[LayerBlock], samples: Tensor, cotangents: Tensor
) -> list[Diagonal]:
    """Σ v² over the rows, by layer."""
    like = trainable(model)
    zeros = [torch.zeros(block.shape(like)).to(cotangents) for block in blocks]
    if not blocks:
        return []

    def of_row(number: int) -> list[Tensor]:
        (row,) = one_by_one(task, model, blocks, samples[number, None], cotangents[number, None])
        return [in_single(matrix) ** 2 for matrix in row]

    return [Diagonal(one) for one in sum_of_batches(range(len(samples)), of_row, "diagonals", into=zeros)]
