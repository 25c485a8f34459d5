"""Gradients of single samples, layer by layer, from one backward pass for a whole batch.

A sample's gradient of a layer is Σ δ aᵀ over its places, with a what goes into the layer and δ the gradient at what
comes out; both are seen from outside. Of a linear layer that a sample goes through once it is kept as δ and a. What is
seen may not be all, as a model may use weights elsewhere too or order samples as it likes, so that a random combination
of the gradients is compared with that of autograd. Where they differ, and where nothing can be seen, as within
attention, gradients are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from excise import processes
from excise.curvature.backwards import pulled_back
from excise.curvature.rows import DenseRows, OuterRows, Rows, joined, parts_of
from excise.slices.layers import Layer
from excise.slices.slices import LayerBlock, Slices
from excise.task.hooks import capture
from excise.task.parameters import trained_parameters
from excise.task.precision import SHORT, in_single
from excise.task.task import Task

BATCH = 64
ROUNDING = 1e-4  # share of the gradients' norms that two ways to compute them may differ by
ROUNDING_OF_HALVES = 0.05  # the same of a model in half precision
Calls = list[tuple[Tensor, Tensor]]
"""Input and output of each call of a layer."""


def sample_rows(task: Task, model: nn.Module, slices: Slices, samples: Tensor, cotangents: Tensor) -> list[Rows]:
    """Jᵀu of each sample and cotangent u of its outputs, by layer; a sample may come several times."""
    blocks = slices.block(range(len(slices))).chosen
    modules, layers = dict(model.named_modules()), enumerate(zip(slices.layers, blocks, strict=True))
    seen = {number: pair for number, pair in layers if pair[0].type.has_kfac(modules[pair[0].module])}
    size = task.batch_size_within_memory(BATCH)
    shared = processes.is_shared(len(samples))
    if shared:
        samples, cotangents = processes.share_of(samples), processes.share_of(cotangents)
    found: list[dict[int, Rows]] = []
    for some, given in zip(samples.split(size), cotangents.split(size), strict=True):
        found.append(_rows_of_batch(task, model, seen, some, given) if seen else {})
        seen = {number: seen[number] for number in found[-1]}
    if shared:
        shown = set(seen).intersection(*processes.gathered(list(seen), "layers that show their rows"))
        seen = {number: seen[number] for number in sorted(shown)}
    rows = {number: joined([of_batch[number] for of_batch in found]) for number in seen}
    unseen = [number for number in range(len(blocks)) if number not in rows]
    if unseen:
        each = one_by_one(task, model, [blocks[number] for number in unseen], samples, cotangents)
        dense = (DenseRows(torch.stack(of_layer)) for of_layer in zip(*each, strict=True))
        rows |= dict(zip(unseen, dense, strict=True))
    in_order = [rows[number] for number in range(len(blocks))]
    return _of_all_processes(in_order) if shared else in_order


def _of_all_processes(rows: Sequence[Rows]) -> list[Rows]:
    """The rows of all samples, of which each process has some."""
    found = iter(processes.gathered_rows([part for one in rows for part in parts_of(one)], "rows of samples"))
    return [type(one)(*(next(found) for _ in parts_of(one))) for one in rows]


def one_by_one(
    task: Task, model: nn.Module, blocks: Sequence[LayerBlock], samples: Tensor, cotangents: Tensor
) -> Iterator[list[Tensor]]:
    """The same by a backward pass for each sample: its matrices, units × width, layer by layer."""
    weights = _weights(model, blocks)
    for sample, cotangent in zip(samples, cotangents, strict=True):
        with torch.enable_grad():
            output = task.outputs(model, task.batch([int(sample)]))[0]
            gradients = pulled_back(output, list(weights.values()), cotangent[None])
        tensors = dict(zip(weights, gradients, strict=True))
        yield [in_single(block.take(tensors)) for block in blocks]


@contextmanager
def capturing(model: nn.Module, layers: Sequence[Layer]) -> Iterator[list[Calls]]:
    """Inputs and outputs of the layers in every forward pass inside, call by call."""
    names = [layer.module for layer in layers]
    with capture(model, names, lambda call: (call.input.detach(), call.output), protect=True) as calls:
        yield calls


def _rows_of_batch(
    task: Task, model: nn.Module, asked: dict[int, tuple[Layer, LayerBlock]], samples: Tensor, cotangents: Tensor
) -> dict[int, Rows]:
    """The rows of those of the layers that show them."""
    layers, blocks = zip(*asked.values(), strict=True)
    weights = _weights(model, blocks)
    signs = torch.randn(len(samples), generator=torch.Generator().manual_seed(0)).to(cotangents)
    with torch.enable_grad(), capturing(model, layers) as calls:
        outputs = task.outputs(model, task.batch(samples))[0]
        seen = [list(of_layer) for of_layer in calls]
        watched = [output for of_layer in seen for _, output in of_layer]
        deltas = iter(pulled_back(outputs, watched, cotangents, retain_graph=True))
        truth = pulled_back(outputs, list(weights.values()), signs[:, None] * cotangents)
    tensors, found = dict(zip(weights, truth, strict=True)), {}
    for (number, (layer, block)), of_layer in zip(asked.items(), seen, strict=True):
        module = model.get_submodule(layer.module)
        rows = _sum([_rows_of_call(layer, module, inputs, next(deltas), len(samples)) for inputs, _ in of_layer])
        if rows is not None and _agree(rows, signs, block.take(tensors)):
            found[number] = rows
    return found


def _rows_of_call(layer: Layer, module: Any, inputs: Tensor, delta: Tensor, count: int) -> Rows | None:
    """Those of so many samples; None where they are not known."""
    if len(inputs) != count:
        return None
    inputs, delta = in_single(inputs), in_single(delta)
    if layer.type.looks_up:
        return _rows_looked_up(module, inputs.reshape(count, -1), delta.reshape(count, -1, delta.shape[-1]))
    vectors = layer.type.vectors(module, inputs)
    if vectors is None:
        return None
    vectors = layer.columns(vectors)
    delta = layer.type.kfac_output_gradients(delta).reshape(*vectors.shape[:3], -1)  # samples × places × groups × units
    if vectors.shape[1:3] == (1, 1):
        return OuterRows(delta[:, 0, 0], vectors[:, 0, 0])
    return DenseRows(torch.einsum("npgu,npgw->nguw", delta, vectors).flatten(1, 2))


def _rows_looked_up(module: Any, tokens: Tensor, delta: Tensor) -> Rows:
    """Each row of an embedding gets the gradients of where it was looked up."""
    rows = delta.new_zeros(len(tokens), *module.weight.shape)
    rows.index_put_((torch.arange(len(tokens), device=tokens.device)[:, None], tokens), delta, accumulate=True)
    if module.padding_idx is not None:
        rows[:, module.padding_idx] = 0
    return DenseRows(rows)


def _sum(of_calls: list[Rows | None]) -> Rows | None:
    """Over the calls of a layer."""
    known = [one for one in of_calls if one is not None]
    if not known or len(known) < len(of_calls):
        return None
    return known[0] if len(known) == 1 else DenseRows(torch.stack([one.dense for one in known]).sum(0))


def _agree(rows: Rows, signs: Tensor, truth: Tensor) -> bool:
    """Whether a random combination of the rows is what autograd says it is."""
    if rows.shape != truth.shape:
        return False
    rounding = ROUNDING_OF_HALVES if truth.dtype in SHORT else ROUNDING
    return bool((rows.combined(signs) - truth).norm() <= rounding * (signs.abs() @ rows.norms))


def _weights(model: nn.Module, blocks: Sequence[LayerBlock]) -> dict[str, nn.Parameter]:
    used = {rows.parameter for block in blocks for rows in block.parts}
    return {name: weight for name, weight in trained_parameters(model).items() if name in used}
