"""Curvature that is kept: made once for a model, so that the solve of a request costs next to nothing.

The Gauss-Newton matrix of the mean loss is Σ vvᵀ over rows v = Jᵀ u, one for each retained sample and root u of its
∇²ℓ. Some hundred rows are drawn with probability in proportion to ‖u‖². The few of largest ‖u‖ (hard samples, which a
step must not harm) are kept exactly, as S. The rest becomes K-FAC: a layer's row is v = δ aᵀ, with a its input and δ
the gradient at its output, and Σ vvᵀ ≈ B ⊗ A with B = Σ δδᵀ and A = mean of aaᵀ. Of A only the largest eigenpairs are
kept, and the mean of the others. Where a and δ can't be seen from outside, as within attention, the diagonal Σ v² takes
the place of B ⊗ A. With K all layers' B ⊗ A + λI, which is inverted by eigenvectors,

    (K + SᵀS)⁻¹ g = K⁻¹g - K⁻¹Sᵀ (I + S K⁻¹ Sᵀ)⁻¹ S K⁻¹g,

of which the products are those of rows that K^-½ was applied to (see ``whitened``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.sampling import draw_proportionally
from excise.curvature.factors import Diagonal, KroneckerFactors, LayerCurvature
from excise.curvature.low_rank import leading_directions
from excise.curvature.operators import hessian_roots
from excise.curvature.rows import DenseRows, Rows
from excise.curvature.sample_rows import capturing, one_by_one, sample_rows
from excise.curvature.whitened import WhitenedRows, Whitening
from excise.errors import InputError
from excise.slices.activations import require_calls
from excise.slices.layers import Layer
from excise.slices.slices import Block, LayerBlock, Slices
from excise.task.hooks import capture
from excise.task.parameters import trainable
from excise.task.task import Task

RANK = 64
ROWS = 600
ROWS_PER_SAMPLE = 10  # of few samples more rows tell little that is new
EXACT_ROWS = 128
EXACT_BYTES = 2**30  # what the exact rows may take; of a very large model fewer are kept
INPUTS = 4096  # vectors a that a layer's A is taken from


@dataclass(frozen=True)
class KroneckerPlusRows:
    """The kept curvature of a model's slices."""

    factors: tuple[LayerCurvature, ...]
    """K without the damping, layer by layer."""
    rows: tuple[Rows, ...]
    """S: those of each layer."""
    samples: Tensor
    """Which sample each row of S is of."""
    _made: dict[float, tuple[WhitenedRows, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def to(self, device: torch.device) -> KroneckerPlusRows:
        """The same on another device."""
        if self.rows[0].device == device:
            return self
        factors = tuple(one.to(device) for one in self.factors)
        return KroneckerPlusRows(factors, tuple(rows.to(device) for rows in self.rows), self.samples)

    def solve(self, block: Block, gradient: Tensor, *, damping: float, without: Collection[int] = ()) -> Tensor:
        """(C_PP + damping I)⁻¹ gradient on the block, without the exact rows of some samples."""
        exact, gram = self._exact(block, damping)
        own = WhitenedRows.of(exact.by, [DenseRows(matrices) for matrices in self._matrices(block, gradient[None])])
        kept = ~torch.isin(self.samples, torch.tensor(list(without), dtype=torch.long))
        weights = torch.zeros(len(kept), dtype=torch.double)
        small = gram[kept][:, kept] + torch.eye(int(kept.sum()), dtype=torch.double)
        weights[kept] = torch.linalg.solve(small, exact.kernel(own)[kept, 0])
        return own.solved(torch.ones(1)) - exact.solved(weights)

    def _exact(self, block: Block, damping: float) -> tuple[WhitenedRows, Tensor]:
        """S K^-½ and S K⁻¹ Sᵀ on the block; those of all slices are made once."""
        units = sum(len(chosen.units) for chosen in block.chosen)
        is_whole_model = units == sum(rows.shape[0] for rows in self.rows)
        if is_whole_model and damping in self._made:
            return self._made[damping]
        rows = [self.rows[chosen.layer].of_units(chosen.units) for chosen in block.chosen]
        exact = WhitenedRows.of(self.whitenings(block, damping), rows)
        made = exact, exact.kernel(exact)
        if is_whole_model:
            self._made[damping] = made
        return made

    def whitenings(self, block: Block, damping: float, times: float = 1.0) -> tuple[Whitening, ...]:
        """((C_PP + damping I) · times)^-½ without the exact rows S, layer by layer of the block."""
        return tuple(self.factors[chosen.layer].whitening(chosen.units, damping, times) for chosen in block.chosen)

    def precondition(self, block: Block, damping: float) -> Callable[[Tensor], Tensor]:
        """K⁻¹ alone, for conjugate gradients."""
        return lambda vector: self.solve_rows(block, vector[None], damping)[0]

    def solve_rows(self, block: Block, rows: Tensor, damping: float) -> Tensor:
        """K⁻¹ of each row, without the exact rows S."""
        solved = [
            self.factors[chosen.layer].solve(matrices, chosen.units, damping).flatten(1)
            for chosen, matrices in zip(block.chosen, self._matrices(block, rows), strict=True)
        ]
        return torch.cat(solved, 1)

    def _matrices(self, block: Block, rows: Tensor) -> list[Tensor]:
        """Vectors on the block as matrices, rows × units × width, layer by layer."""
        shapes = [(len(chosen.units), self.rows[chosen.layer].shape[1]) for chosen in block.chosen]
        pieces = rows.split([math.prod(shape) for shape in shapes], dim=1)
        return [piece.reshape(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)]

    @property
    def trace(self) -> float:
        """Of the curvature without damping."""
        exact = sum(float((rows.norms.cpu().double() ** 2).sum()) for rows in self.rows)
        return sum(one.trace for one in self.factors) + exact


def can_cache(task: Task, model: nn.Module, slices: Slices) -> bool:
    """Whether the model's outputs are one row a sample; all that the kept curvature asks for."""
    with torch.no_grad(), capture(model, [layer.module for layer in slices.layers], lambda _: None) as calls:
        outputs = task.outputs(model, task.batch([0]))[0]
    for layer, seen in zip(slices.layers, calls, strict=True):
        require_calls(seen, layer)
    return outputs.ndim == 2 and len(outputs) == 1


def cache(
    task: Task,
    model: nn.Module,
    slices: Slices,
    ids: Sequence[int] | Tensor,
    *,
    rank: int = RANK,
    rows: int = ROWS,
    exact: int = EXACT_ROWS,
    seed: int = 0,
    batch_size: int | None = None,
) -> KroneckerPlusRows:
    """The curvature of the mean loss over the samples; with no batch size given, one that keeps memory small."""
    batch_size = batch_size or task.batch_size_within_memory(64)
    generator = torch.Generator().manual_seed(seed)
    rows = min(rows, ROWS_PER_SAMPLE * len(ids))
    samples, cotangents = _draw_rows(task, model, torch.as_tensor(ids), rows, generator)
    size = sum(parameter.numel() * parameter.element_size() for parameter in trainable(model).values())
    largest = cotangents.norm(dim=1).argsort(descending=True)
    few, many = largest[: min(exact, EXACT_BYTES // size)], largest[min(exact, EXACT_BYTES // size) :]
    blocks = slices.block(range(len(slices))).chosen
    known = [layer.type.has_kfac(model.get_submodule(layer.module)) for layer in slices.layers]
    seen = [layer for layer, has_kfac in zip(slices.layers, known, strict=True) if has_kfac]
    unseen = [block for block, has_kfac in zip(blocks, known, strict=True) if not has_kfac]
    inputs = _inputs_of_layers(task, model, seen, torch.as_tensor(ids), generator, batch_size)
    outputs = _output_factors(task, model, seen, samples[many], cotangents[many], batch_size)
    kronecker = iter([_factors(layer, a, b, rank) for layer, a, b in zip(seen, inputs, outputs, strict=True)])
    diagonals = iter(_diagonals(task, model, unseen, samples[many], cotangents[many]))
    return KroneckerPlusRows(
        factors=tuple(next(kronecker) if has_kfac else next(diagonals) for has_kfac in known),
        rows=_exact_rows(task, model, slices, samples[few], cotangents[few]),
        samples=samples[few],
    )


def _draw_rows(
    task: Task, model: nn.Module, ids: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Samples and cotangents u/√(nπ) of the rows that are drawn."""
    with torch.no_grad():
        seen = [task.outputs(model, batch) for batch in task.batches(ids, 256)]
        outputs, targets = torch.cat([one for one, _ in seen]), torch.cat([one for _, one in seen])
        sizes, roots = _roots(task, outputs, targets)
        drawn, inclusion = draw_proportionally(sizes.flatten(), count, generator)
        sample, root = drawn // sizes.shape[1], drawn % sizes.shape[1]
        scale = (len(ids) * inclusion).rsqrt().to(outputs)
        return ids[sample], roots(sample.to(outputs.device), root.to(outputs.device)) * scale[:, None]


def _roots(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The squared norms of u with Σ uuᵀ = ∇²ℓ, samples × roots, and the u of some of them."""
    weights = task.cross_entropy_weights(outputs, targets)
    if weights is not None:
        # s (diag(p) - ppᵀ) = Σ s p_c (e_c - p)(e_c - p)ᵀ: no matrix for each sample, of which there may be many classes
        p = outputs.softmax(1)
        if p.shape[1] == 2:  # of two classes it has rank one, as with one column and the binary loss
            s = weights * p[:, 0] * p[:, 1]
            return 2 * s[:, None], lambda sample, _: s[sample].sqrt()[:, None] * s.new_tensor([1.0, -1.0])
        sizes = weights[:, None] * (p * (1 - 2 * p + (p**2).sum(1, keepdim=True)))

        def of_label(sample: Tensor, label: Tensor) -> Tensor:
            difference = nn.functional.one_hot(label, p.shape[1]) - p[sample]
            return (weights[sample] * p[sample, label]).sqrt()[:, None] * difference

        return sizes.clamp_min(0), of_label
    each = hessian_roots(task, outputs, targets)
    return (each**2).sum(1), lambda sample, root: each[sample, :, root]


def _factors(layer: Layer, inputs: Tensor, outputs: Tensor, rank: int) -> KroneckerFactors:
    if not (inputs.isfinite().all() and outputs.isfinite().all()):
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
    rest = _mean_of_rest((inputs**2).sum() / count, values, width)
    return KroneckerFactors(outputs, values, vectors[:, :rank], rest)


def _mean_of_rest(trace: Tensor, values: Tensor, width: int) -> float:
    return max(0.0, float(trace - values.sum())) / max(1, width - len(values))


def _exact_rows(task: Task, model: nn.Module, slices: Slices, samples: Tensor, cotangents: Tensor) -> tuple[Rows, ...]:
    """All rows, by layer."""
    if len(samples):
        return tuple(sample_rows(task, model, slices, samples, cotangents))
    like, blocks = trainable(model), slices.block(range(len(slices))).chosen
    return tuple(DenseRows(torch.zeros(0, *block.shape(like)).to(cotangents)) for block in blocks)


def _diagonals(
    task: Task, model: nn.Module, blocks: Sequence[LayerBlock], samples: Tensor, cotangents: Tensor
) -> list[Diagonal]:
    """Σ v² over the rows, by layer."""
    like = trainable(model)
    totals = [torch.zeros(block.shape(like)).to(cotangents) for block in blocks]
    if blocks:
        for row in one_by_one(task, model, blocks, samples, cotangents):
            totals = [total + matrix**2 for total, matrix in zip(totals, row, strict=True)]
    return [Diagonal(total) for total in totals]


def _inputs_of_layers(
    task: Task, model: nn.Module, layers: Sequence[Layer], ids: Tensor, generator: torch.Generator, batch_size: int
) -> list[Tensor]:
    """For each layer some of the vectors a, one a row; for an embedding how often each token occurs in a sample."""
    if not layers:
        return []
    some = ids[torch.randperm(len(ids), generator=generator)[: min(len(ids), INPUTS)]]
    if any(layer.type.has_places for layer in layers):
        some = some[: INPUTS // 8]  # several places of each sample
    places = math.ceil(INPUTS / len(some))
    found: list[list[Tensor]] = [[] for _ in layers]
    modules = dict(model.named_modules())
    with torch.no_grad(), capturing(model, layers) as calls:
        for batch in task.batches(some, batch_size):
            count = len(task.outputs(model, batch)[0])
            for layer, seen, bucket in zip(layers, calls, found, strict=True):
                for inputs, _ in seen:
                    shared = count // len(inputs) if layer.type.looks_up else 1  # positions, for all samples
                    bucket.append(shared * _vectors(layer, modules[layer.module], inputs, places, generator))
                seen.clear()
    return [
        sum(bucket, torch.zeros_like(bucket[0])) / len(some) if layer.type.looks_up else torch.cat(bucket)
        for layer, bucket in zip(layers, found, strict=True)
    ]


def _vectors(layer: Layer, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
    """The vectors that a unit's weights are multiplied with, at some of the places of each sample."""
    vectors = layer.type.kfac_inputs(module, inputs, places, generator)
    return vectors if layer.type.looks_up else layer.columns(vectors)


def _output_factors(
    task: Task, model: nn.Module, layers: Sequence[Layer], samples: Tensor, cotangents: Tensor, batch_size: int
) -> list[Tensor]:
    """Σ δδᵀ of each layer over the rows, and over the places within each."""
    if not layers:
        return []
    sums: list[Tensor | None] = [None] * len(layers)
    with torch.enable_grad(), capturing(model, layers) as calls:
        for low in range(0, len(samples), batch_size):
            outputs = task.outputs(model, task.batch(samples[low : low + batch_size]))[0]
            watched = [output for seen in calls for _, output in seen]
            gradients = iter(
                torch.autograd.grad(
                    outputs, watched, cotangents[low : low + batch_size], allow_unused=True, materialize_grads=True
                )
            )
            for index, (layer, seen) in enumerate(zip(layers, calls, strict=True)):
                for _ in seen:
                    delta = layer.type.kfac_output_gradients(next(gradients))
                    total = sums[index]
                    sums[index] = delta.T @ delta if total is None else total + delta.T @ delta
                seen.clear()
    modules = dict(model.named_modules())
    return [
        torch.zeros([layer.type.kfac_outputs(modules[layer.module])] * 2).to(cotangents) if total is None else total
        for layer, total in zip(layers, sums, strict=True)
    ]
