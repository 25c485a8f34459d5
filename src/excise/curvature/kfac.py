"""Curvature that is kept: made once for a model, so that the solve of a request costs next to nothing.

The Gauss-Newton matrix of the mean loss is Σ vvᵀ over rows v = Jᵀ u, one for each retained sample and root u of its
∇²ℓ. Some hundred rows are drawn with probability in proportion to ‖u‖². The few of largest ‖u‖ (hard samples, which a
step must not harm) are kept exactly, as S. The rest becomes K-FAC: a layer's row is v = δ aᵀ, with a its input and δ
the slope at its output, and Σ vvᵀ ≈ B ⊗ A with B = Σ δδᵀ and A = mean of aaᵀ. Of A only the largest eigenpairs are
kept, and the mean of the others.
With K = B ⊗ A + λI, which is inverted by eigenvectors,

    (K + SᵀS)⁻¹ g = K⁻¹g - K⁻¹Sᵀ (I + S K⁻¹ Sᵀ)⁻¹ S K⁻¹g.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from excise.activations import require_calls
from excise.curvature import hessian_roots
from excise.sampling import systematic
from excise.slices import Block, Layer, Slices, trainable
from excise.task import Task, trained_parameters

KINDS = ("linear", "convolution", "embedding")
RANK = 64
ROWS = 600
ROWS_PER_SAMPLE = 10  # of few samples more rows tell little that is new
EXACT_ROWS = 128
EXACT_BYTES = 2**30  # what the exact rows may take; of a very large model fewer are kept
INPUTS = 4096  # vectors a that a layer's A is taken from


@dataclass(frozen=True)
class Factors:
    """One layer's B ⊗ A."""

    between: Tensor
    """B, units × units; of an embedding its diagonal alone (how often each token occurs)."""
    values: Tensor
    """The largest eigenvalues of A."""
    vectors: Tensor
    """Their eigenvectors, one a column."""
    rest: float
    """Mean of the other eigenvalues."""

    def divide(self, matrices: Tensor, units: Tensor, damping: float) -> Tensor:
        """(B_PP ⊗ A + damping I)⁻¹ of each of a stack of matrices, units × width."""
        if self.between.ndim == 1:
            return self._divide_rotated(matrices, self.between[units], damping)
        values, vectors = torch.linalg.eigh(self.between[units][:, units])
        result: Tensor = vectors @ self._divide_rotated(vectors.T @ matrices, values.clamp_min(0), damping)
        return result

    def _divide_rotated(self, matrices: Tensor, between: Tensor, damping: float) -> Tensor:
        plain = 1 / (between * self.rest + damping)[:, None]
        along = 1 / (between[:, None] * self.values + damping)
        return matrices * plain + ((matrices @ self.vectors) * (along - plain)) @ self.vectors.T


@dataclass(frozen=True)
class Cached:
    """The kept curvature of a model's slices."""

    factors: tuple[Factors, ...]
    rows: tuple[Tensor, ...]
    """S: for each layer, rows × units × width."""
    samples: Tensor
    """Which sample each row of S is of."""
    _made: dict[float, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def to(self, device: torch.device) -> Cached:
        """The same on another device."""
        if self.factors[0].between.device == device:
            return self
        moved = tuple(
            Factors(one.between.to(device), one.values.to(device), one.vectors.to(device), one.rest)
            for one in self.factors
        )
        return Cached(moved, tuple(rows.to(device) for rows in self.rows), self.samples)

    def solve(self, block: Block, slope: Tensor, *, damping: float, without: Collection[int] = ()) -> Tensor:
        """(C_PP + damping I)⁻¹ slope on the block, without the exact rows of some samples."""
        found = self.precondition(block, damping)(slope)
        kept = ~torch.isin(self.samples, torch.tensor(list(without), dtype=torch.long)).to(slope.device)
        rows, images, gram = self._exact(block, damping)
        small = gram[kept][:, kept] + torch.eye(int(kept.sum())).to(gram)
        weights = torch.zeros(len(rows)).to(gram)
        weights[kept] = torch.linalg.solve(small, (rows @ found)[kept])
        result: Tensor = found - weights @ images
        return result

    def _exact(self, block: Block, damping: float) -> tuple[Tensor, Tensor, Tensor]:
        """S, S K⁻¹ and S K⁻¹ Sᵀ on the block; those of all slices are made once."""
        units = sum(len(chosen.units) for chosen in block.chosen)
        everything = units == sum(rows.shape[1] for rows in self.rows)
        if everything and damping in self._made:
            return self._made[damping]
        exact, images = [], []
        for chosen in block.chosen:
            which = chosen.units.to(self.rows[0].device)
            rows = self.rows[chosen.layer][:, which]
            exact.append(rows.flatten(1))
            images.append(self.factors[chosen.layer].divide(rows, which, damping).flatten(1))
        s, image = torch.cat(exact, 1), torch.cat(images, 1)
        made = s, image, s @ image.T
        if everything:
            self._made[damping] = made
        return made

    def precondition(self, block: Block, damping: float) -> Callable[[Tensor], Tensor]:
        """K⁻¹ alone, for conjugate gradients."""
        units = [chosen.units.to(self.rows[0].device) for chosen in block.chosen]
        factors = [self.factors[chosen.layer] for chosen in block.chosen]

        def divide(vector: Tensor) -> Tensor:
            parts = zip(factors, self._matrices(block, vector), units, strict=True)
            return torch.cat([one.divide(matrix[None], which, damping).flatten() for one, matrix, which in parts])

        return divide

    def _matrices(self, block: Block, vector: Tensor) -> list[Tensor]:
        shapes = [(len(chosen.units), self.rows[chosen.layer].shape[2]) for chosen in block.chosen]
        pieces = vector.split([math.prod(shape) for shape in shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def can_cache(task: Task, model: nn.Module, slices: Slices) -> bool:
    """Whether all layers are of kinds whose inputs and outputs can be watched, and the outputs are one row a sample."""
    if any(layer.kind not in KINDS for layer in slices.layers):
        return False
    with torch.no_grad(), _capturing(model, slices) as calls:
        outputs = task.outputs(model, task.batch([0]))[0]
        for layer, seen in zip(slices.layers, calls, strict=True):
            require_calls(seen, layer)
            if layer.kind == "embedding" and any(inputs.is_floating_point() for inputs, _ in seen):
                return False  # it makes its ids itself, from a mask or a shape
    return outputs.ndim == 2


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
) -> Cached:
    """The curvature of the mean loss over the samples; with no batch size given, one that keeps memory small."""
    batch_size = batch_size or task.modest_batch(64)
    generator = torch.Generator().manual_seed(seed)
    rows = min(rows, ROWS_PER_SAMPLE * len(ids))
    samples, cotangents = _draw_rows(task, model, torch.as_tensor(ids), rows, generator)
    size = sum(parameter.numel() * parameter.element_size() for parameter in trainable(model).values())
    largest = cotangents.norm(dim=1).argsort(descending=True)
    few, many = largest[: min(exact, EXACT_BYTES // size)], largest[min(exact, EXACT_BYTES // size) :]
    inputs = _inputs_of_layers(task, model, slices, torch.as_tensor(ids), generator, batch_size)
    between = _output_factors(task, model, slices, samples[many], cotangents[many], batch_size)
    factors = tuple(_factors(layer, a, b, rank) for layer, a, b in zip(slices.layers, inputs, between, strict=True))
    return Cached(factors, _exact_rows(task, model, slices, samples[few], cotangents[few]), samples[few])


def _draw_rows(
    task: Task, model: nn.Module, ids: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Samples and cotangents u/√(nπ) of the rows that are drawn."""
    with torch.no_grad():
        seen = [task.outputs(model, batch) for batch in task.batches(ids, 256)]
        outputs, targets = torch.cat([one for one, _ in seen]), torch.cat([one for _, one in seen])
        sizes, roots = _roots(task, outputs, targets)
        drawn, inclusion = systematic(sizes.flatten(), count, generator)
        sample, root = drawn // sizes.shape[1], drawn % sizes.shape[1]
        scale = (len(ids) * inclusion).rsqrt().to(outputs)
        return ids[sample], roots(sample.to(outputs.device), root.to(outputs.device)) * scale[:, None]


def _roots(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The squared norms of u with Σ uuᵀ = ∇²ℓ, samples × roots, and the u of some of them."""
    if isinstance(task.loss, nn.CrossEntropyLoss) and task.loss.weight is None:
        # diag(p) - ppᵀ = Σ p_c (e_c - p)(e_c - p)ᵀ: no matrix for each sample, of which there may be many classes
        p = outputs.softmax(1)
        sizes = p * (1 - 2 * p + (p**2).sum(1, keepdim=True))

        def of_label(sample: Tensor, label: Tensor) -> Tensor:
            difference = nn.functional.one_hot(label, p.shape[1]) - p[sample]
            return p[sample, label].sqrt()[:, None] * difference

        return sizes.clamp_min(0), of_label
    each = hessian_roots(task, outputs, targets)
    return (each**2).sum(1), lambda sample, root: each[sample, :, root]


def _factors(layer: Layer, inputs: Tensor, between: Tensor, rank: int) -> Factors:
    if layer.kind == "embedding":  # a row of its weights is a unit, so that the two sides are exchanged
        values, vectors = torch.linalg.eigh(between)
        kept = values.flip(0)[:rank].clamp_min(0), vectors.flip(1)[:, :rank]
        return Factors(inputs, *kept, _mean_of_rest(between.trace(), kept[0], len(between)))
    count, width = inputs.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the low-rank routine draws from the global generator
        _, singular, vectors = torch.svd_lowrank(inputs, q=min(rank + 8, count, width), niter=4)
    values = singular[:rank] ** 2 / count
    return Factors(between, values, vectors[:, :rank], _mean_of_rest((inputs**2).sum() / count, values, width))


def _mean_of_rest(trace: Tensor, values: Tensor, width: int) -> float:
    return max(0.0, float(trace - values.sum())) / max(1, width - len(values))


def _exact_rows(
    task: Task, model: nn.Module, slices: Slices, samples: Tensor, cotangents: Tensor
) -> tuple[Tensor, ...]:
    """Jᵀu of each, by layer."""
    weights = trained_parameters(model)
    everything = slices.block(range(len(slices)))
    rows: list[list[Tensor]] = [[] for _ in slices.layers]
    for sample, cotangent in zip(samples, cotangents, strict=True):
        with torch.enable_grad():
            output = task.outputs(model, task.batch([int(sample)]))[0]
            slopes = torch.autograd.grad(
                output, list(weights.values()), cotangent[None], allow_unused=True, materialize_grads=True
            )
        tensors = dict(zip(weights, slopes, strict=True))
        for chosen, bucket in zip(everything.chosen, rows, strict=True):
            bucket.append(chosen.take(tensors))
    if not len(samples):
        like = trainable(model)
        return tuple(torch.zeros(0, *chosen.shape(like)).to(cotangents) for chosen in everything.chosen)
    return tuple(torch.stack(bucket) for bucket in rows)


def _inputs_of_layers(
    task: Task, model: nn.Module, slices: Slices, ids: Tensor, generator: torch.Generator, batch_size: int
) -> list[Tensor]:
    """For each layer some of the vectors a, one a row; for an embedding how often each token occurs in a sample."""
    some = ids[torch.randperm(len(ids), generator=generator)[: min(len(ids), INPUTS)]]
    if any(layer.kind != "linear" for layer in slices.layers):
        some = some[: INPUTS // 8]  # several places of each sample
    places = math.ceil(INPUTS / len(some))
    found: list[list[Tensor]] = [[] for _ in slices.layers]
    modules = dict(model.named_modules())
    with torch.no_grad(), _capturing(model, slices) as calls:
        for batch in task.batches(some, batch_size):
            count = len(task.outputs(model, batch)[0])
            for layer, seen, bucket in zip(slices.layers, calls, found, strict=True):
                for inputs, _ in seen:
                    shared = count // len(inputs) if layer.kind == "embedding" else 1  # positions, for all samples
                    bucket.append(shared * _vectors(layer, modules[layer.module], inputs, places, generator))
                seen.clear()
    return [
        sum(bucket, torch.zeros_like(bucket[0])) / len(some) if layer.kind == "embedding" else torch.cat(bucket)
        for layer, bucket in zip(slices.layers, found, strict=True)
    ]


def _vectors(layer: Layer, module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
    """The vectors that a unit's weights are multiplied with, at some of the places of each sample."""
    if layer.kind == "embedding":
        weight: Tensor = module.weight
        return torch.bincount(inputs.flatten(), minlength=layer.units).to(weight)
    vectors = _patches(module, inputs, places, generator) if layer.kind == "convolution" else _tokens(inputs, places)
    names = [rows.parameter.rpartition(".")[2] for rows in layer.parts]
    pieces = [vectors if name == "weight" else torch.ones_like(vectors[:, :1]) for name in names]
    return torch.cat(pieces, dim=1)


def _tokens(inputs: Tensor, places: int) -> Tensor:
    """The input of a linear layer; of a text, that of some tokens, at equal distances."""
    if inputs.ndim == 2:
        return inputs
    tokens = inputs.flatten(1, -2)
    return tokens[:, :: math.ceil(tokens.shape[1] / places)].flatten(0, 1)


def _patches(module: Any, inputs: Tensor, places: int, generator: torch.Generator) -> Tensor:
    """The patches of the input that a convolution's filters see, at random places (the same for the whole batch)."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    view = nn.functional.pad(inputs, _padding(module), mode=mode)
    dimensions = len(module.kernel_size)
    for axis in range(dimensions):
        reach = (module.kernel_size[axis] - 1) * module.dilation[axis] + 1
        view = view.unfold(2 + axis, reach, module.stride[axis])[..., :: module.dilation[axis]]
    shape = view.shape[2 : 2 + dimensions]
    where = torch.randperm(math.prod(shape), generator=generator)[:places]
    here: tuple[Any, ...] = (slice(None), slice(None), *torch.unravel_index(where, shape))
    picked = view[here]  # samples × channels × places × kernel
    return picked.transpose(1, 2).reshape(-1, picked.shape[1] // module.groups * math.prod(module.kernel_size))


def _padding(module: Any) -> list[int]:
    """As ``functional.pad`` wants it: last axis first, both sides of each."""
    sides: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [0, 0] if module.padding == "valid" else [module.padding[axis]] * 2
    return sides


def _output_factors(
    task: Task, model: nn.Module, slices: Slices, samples: Tensor, cotangents: Tensor, batch_size: int
) -> list[Tensor]:
    """Σ δδᵀ of each layer over the rows, and over the places within each."""
    sums: list[Tensor | None] = [None] * len(slices.layers)
    with torch.enable_grad(), _capturing(model, slices) as calls:
        for low in range(0, len(samples), batch_size):
            outputs = task.outputs(model, task.batch(samples[low : low + batch_size]))[0]
            watched = [output for seen in calls for _, output in seen]
            slopes = iter(
                torch.autograd.grad(
                    outputs, watched, cotangents[low : low + batch_size], allow_unused=True, materialize_grads=True
                )
            )
            for index, (layer, seen) in enumerate(zip(slices.layers, calls, strict=True)):
                for _ in seen:
                    delta = next(slopes)
                    delta = delta.movedim(1, -1) if layer.kind == "convolution" else delta
                    delta = delta.reshape(-1, delta.shape[-1])
                    total = sums[index]
                    sums[index] = delta.T @ delta if total is None else total + delta.T @ delta
                seen.clear()
    modules = dict(model.named_modules())
    return [
        torch.zeros(_outputs(layer, modules[layer.module])).to(cotangents) if total is None else total
        for layer, total in zip(slices.layers, sums, strict=True)
    ]


def _outputs(layer: Layer, module: Any) -> tuple[int, int]:
    size = int(module.embedding_dim) if layer.kind == "embedding" else layer.units
    return size, size


@contextmanager
def _capturing(model: nn.Module, slices: Slices) -> Iterator[list[list[tuple[Tensor, Tensor]]]]:
    """Inputs and outputs of the layers in every forward pass inside, call by call."""
    calls: list[list[tuple[Tensor, Tensor]]] = [[] for _ in slices.layers]
    modules = dict(model.named_modules())

    def watch(bucket: list[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            bucket.append((args[0].detach(), output))
            return output.clone()  # what follows may work in place

        return hook

    handles = [
        modules[layer.module].register_forward_hook(watch(bucket))
        for layer, bucket in zip(slices.layers, calls, strict=True)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
