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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from excise._support.sampling import draw_proportionally
from excise.curvature.exact_rows import exact_rows
from excise.curvature.factors import LayerCurvature
from excise.curvature.groups import bytes_of_outputs, bytes_of_row, groups_within
from excise.curvature.layer_statistics import all_factors, diagonals, inputs_of_layers, output_factors
from excise.curvature.operators import hessian_roots
from excise.curvature.rows import DenseRows, Rows
from excise.curvature.spill import Spill
from excise.curvature.whitened import WhitenedRows, Whitening
from excise.slices.activations import require_calls
from excise.slices.slices import Block, Slices
from excise.task.hooks import capture
from excise.task.sharing import rows_over
from excise.task.task import Task

RANK = 64
ROWS = 600
ROWS_PER_SAMPLE = 10  # of few samples more rows tell little that is new
EXACT_ROWS = 128
EXACT_BYTES = 2**30  # what the exact rows may take; of a very large model fewer are kept


@dataclass(frozen=True)
class KroneckerPlusRows:
    """The kept curvature of a model's slices."""

    factors: tuple[LayerCurvature, ...]
    """K without the damping, layer by layer."""
    rows: tuple[Rows, ...]
    """S: those of each layer."""
    samples: Tensor
    """Which sample each row of S is of."""
    spill: Spill | None = field(default=None, repr=False, compare=False)
    """Where factors and rows lie that are too many for memory: solves then go layer by layer. None for memory."""
    _made: dict[float, tuple[WhitenedRows, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def to(self, device: torch.device) -> KroneckerPlusRows:
        """The same on another device."""
        if self.rows[0].device == device or self.spill is not None:
            return self
        factors = tuple(one.to(device) for one in self.factors)
        return KroneckerPlusRows(factors, tuple(rows.to(device) for rows in self.rows), self.samples)

    def solve(self, block: Block, gradient: Tensor, *, damping: float, without: Collection[int] = ()) -> Tensor:
        """(C_PP + damping I)⁻¹ gradient on the block, without the exact rows of some samples."""
        if self.spill is not None:
            return self._solve_by_layers(block, gradient, damping, without)
        exact, gram = self._exact(block, damping)
        own = WhitenedRows.of(exact.by, [DenseRows(matrices) for matrices in self._matrices(block, gradient[None])])
        weights = self.weights_of_rows(gram, exact.kernel(own)[:, 0], without)
        return own.solved(torch.ones(1)) - exact.solved(weights)

    def weights_of_rows(self, gram: Tensor, along: Tensor, without: Collection[int]) -> Tensor:
        """(I + S K⁻¹ Sᵀ)⁻¹ S K⁻¹ g, of rows that are there still."""
        kept = ~torch.isin(self.samples, torch.tensor(list(without), dtype=torch.long))
        weights = torch.zeros(len(kept), dtype=torch.double)
        small = gram[kept][:, kept]
        small.diagonal().add_(1)
        weights[kept] = torch.linalg.solve(small, along[kept])
        return weights

    def _solve_by_layers(self, block: Block, gradient: Tensor, damping: float, without: Collection[int]) -> Tensor:
        """The same, with what is computed of one layer in memory at a time; each is gone through twice."""
        kept = (~torch.isin(self.samples, torch.tensor(list(without), dtype=torch.long))).nonzero()[:, 0]
        small, missed = torch.eye(len(kept), dtype=torch.double), torch.zeros(len(kept), dtype=torch.double)
        if len(kept):
            for exact, own in self._layers(block, gradient, damping, kept):
                small, missed = small + exact.kernel(exact), missed + exact.kernel(own)[:, 0]
        weights = torch.linalg.solve(small, missed) if len(kept) else missed
        one = torch.ones(1)
        parts = [own.solved(one) - exact.solved(weights) for exact, own in self._layers(block, gradient, damping, kept)]
        return torch.cat(parts)

    def _layers(
        self, block: Block, gradient: Tensor, damping: float, kept: Tensor
    ) -> Iterator[tuple[WhitenedRows, WhitenedRows]]:
        """Layer by layer, the exact rows and the gradient, whitened."""
        for chosen, matrices in zip(block.chosen, self._matrices(block, gradient[None]), strict=True):
            factor = self.factors[chosen.layer].to(gradient.device)
            by = (factor.whitening(chosen.units.to(gradient.device), damping),)
            rows = self.rows[chosen.layer].at(kept).of_units(chosen.units).to(gradient.device)
            yield WhitenedRows.of(by, [rows]), WhitenedRows.of(by, [DenseRows(matrices)])
            if self.spill is not None:
                self.spill.give_back()

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
    memory: int | None = None,
) -> KroneckerPlusRows:
    """The curvature of the mean loss over the samples; with no batch size given, one that keeps memory small.

    What is more than ``memory`` bytes, or than half of what is free, is kept in temporary files.
    """
    batch_size = batch_size or task.batch_size_within_memory(64)
    generator = torch.Generator().manual_seed(seed)
    rows = min(rows, ROWS_PER_SAMPLE * len(ids))
    samples, cotangents = draw_rows(task, model, torch.as_tensor(ids), rows, generator)
    few, many = few_and_many(model, cotangents, exact)
    blocks = slices.block(range(len(slices))).chosen
    known = [layer.type.has_kfac(model.get_submodule(layer.module)) for layer in slices.layers]
    seen = [layer for layer, has_kfac in zip(slices.layers, known, strict=True) if has_kfac]
    unseen = [block for block, has_kfac in zip(blocks, known, strict=True) if not has_kfac]
    spill = Spill(memory)
    groups = groups_within(spill, seen, model)
    is_large = len(groups) > 1 or not spill.has_room(2 * bytes_of_outputs(seen, model) + len(few) * bytes_of_row(model))
    kronecker: list[LayerCurvature] = []
    state = generator.get_state()  # of which each process goes on to draw its own places
    for group in groups:  # one of them, unless there is little memory: each takes passes of its own
        generator.set_state(state)
        inputs = inputs_of_layers(task, model, group, torch.as_tensor(ids), generator, batch_size)
        outputs = output_factors(task, model, group, samples[many], cotangents[many], batch_size)
        made = all_factors(group, inputs, outputs, rank)
        kronecker += [one.kept_in(spill) for one in made] if is_large else made
    plain = diagonals(task, model, unseen, samples[many], cotangents[many])
    diagonal: list[LayerCurvature] = [one.kept_in(spill) if is_large else one for one in plain]
    return KroneckerPlusRows(
        factors=tuple(kronecker.pop(0) if has_kfac else diagonal.pop(0) for has_kfac in known),
        rows=exact_rows(task, model, slices, samples[few], cotangents[few], spill if is_large else None),
        samples=samples[few],
        spill=spill if is_large else None,
    )


def few_and_many(model: nn.Module, cotangents: Tensor, exact: int) -> tuple[Tensor, Tensor]:
    """Which rows are kept as they are, at most so many and as many as fit into memory, and which become factors."""
    largest = cotangents.norm(dim=1).argsort(descending=True)
    count = min(exact, EXACT_BYTES // bytes_of_row(model))
    return largest[:count], largest[count:]


def draw_rows(
    task: Task, model: nn.Module, ids: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Samples and cotangents u/√(nπ) of the rows that are drawn."""
    with torch.no_grad():
        outputs, targets = rows_over(task, ids, lambda batch: task.outputs(model, batch), 256, "outputs")
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
