"""Perturb a sample, send the copies through the network, and watch: -> (activations of every slice, losses)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from excise import processes
from excise.errors import InputError, NotYetSupportedError
from excise.slices.layers import Layer, mean_of_tokens
from excise.slices.slices import Slices
from excise.task.batches import (
    Batch,
    inputs_of,
    joined,
    part,
    real_values,
    repeated,
    token_mask,
    tokens_in,
    with_inputs,
    with_real_values,
    with_tokens,
)
from excise.task.hooks import Call, capture
from excise.task.task import Task

DRAWN_TOGETHER = 32


class Perturbation(Protocol):
    """Makes perturbed copies of a sample: a batch of one in, a batch of ``copies`` out."""

    def __call__(self, inputs: Any, copies: int, generator: torch.Generator) -> Any:
        """Perturbed copies of a batch of one."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Add N(0, scale²) to every value: for images and other inputs of one scale."""

    scale: float = 0.1

    def __call__(self, inputs: Any, copies: int, generator: torch.Generator) -> Any:
        """Perturbed copies of a batch of one; of a mapping, such as with ``pixel_values``, its first real entry."""
        values = _require_real(inputs, "GaussianNoise")
        noise = self.scale * _normal(values, copies, generator)
        return with_real_values(repeated(inputs, copies), values + noise)


@dataclass(frozen=True)
class ScaledNoise:
    """Add noise in proportion to each column's spread: for rows of a table.

    ``spread`` is one standard deviation per column, such as ``X.std(0)``.
    """

    spread: Tensor
    scale: float = 0.1

    def __call__(self, inputs: Any, copies: int, generator: torch.Generator) -> Any:
        """Perturbed copies of a batch of one."""
        values = _require_real(inputs, "ScaledNoise")
        noise = self.scale * self.spread.to(values) * _normal(values, copies, generator)
        return with_real_values(repeated(inputs, copies), values + noise)


@dataclass(frozen=True)
class TokenReplacement:
    """Replace some tokens of a text by random ones; special tokens and padding stay as they are.

    ``vocabulary`` is the range of ids to draw from; ``keep`` are the ids that are never replaced nor drawn. Of inputs
    with an ``attention_mask``, what it hides is padding.
    """

    vocabulary: tuple[int, int]
    keep: tuple[int, ...] = ()
    rate: float = 0.15
    key: str = "input_ids"

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, rate: float = 0.15) -> TokenReplacement:
        """The vocabulary and special tokens of a Hugging Face tokenizer."""
        return cls(vocabulary=(0, len(tokenizer)), keep=tuple(tokenizer.all_special_ids), rate=rate)

    def __call__(self, inputs: Any, copies: int, generator: torch.Generator) -> Any:
        """Perturbed copies of a batch of one: a tensor of ids, or a mapping that holds one."""
        copied = repeated(inputs, copies)
        ids, mask = tokens_in(copied, self.key), token_mask(copied)
        if ids is None:
            raise InputError(f"the inputs have no {self.key!r} to replace tokens in; they have {list(inputs)}.")
        replaced = self._replaced(ids, generator)
        if mask is not None and mask.shape == ids.shape:
            replaced = torch.where(mask.bool(), replaced, ids)
        return with_tokens(copied, replaced, self.key)

    def _replaced(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        allowed = torch.arange(*self.vocabulary)
        allowed = allowed[~torch.isin(allowed, torch.tensor(self.keep, dtype=torch.long))]
        if len(allowed) == 0:
            raise InputError(f"vocabulary={self.vocabulary} has no id that is not in keep; draw from a wider range.")
        drawn = allowed[torch.randint(len(allowed), ids.shape, generator=generator)].to(ids)
        replaced = (torch.rand(ids.shape, generator=generator) < self.rate).to(ids.device)
        kept = torch.isin(ids, torch.tensor(self.keep, dtype=ids.dtype, device=ids.device))
        return torch.where(replaced & ~kept, drawn, ids)


def default_perturbation(inputs: Any) -> Perturbation:
    """Gaussian noise for real-valued inputs; anything else needs a perturbation of its own."""
    if real_values(inputs) is not None:
        return GaussianNoise()
    raise InputError(
        "the inputs are not real numbers, so Gaussian noise does not apply; pass perturbation= to Task or to the "
        "selection (--perturbation MODULE:FACTORY), TokenReplacement.for_tokenizer(tokenizer) for text, or use Drift() "
        "(--method drift), which needs none."
    )


@dataclass(frozen=True)
class LayerActivations:
    """What a layer's units did over the copies of a sample."""

    units: NDArray[np.int64]
    """Which units were watched: all, or for an embedding the rows that the sample looks up."""
    values: NDArray[np.float32]
    """Copies × units; a unit with several outputs (places of an image, tokens of a text) by their mean, without
    padding."""


@dataclass(frozen=True)
class Observation:
    """Activations of all slices and losses, over the copies of one sample."""

    layers: tuple[LayerActivations, ...]
    losses: NDArray[np.float64]


def observe(
    task: Task,
    model: nn.Module,
    slices: Slices,
    sample: int,
    *,
    copies: int,
    perturbation: Perturbation | None,
    generator: torch.Generator,
    batch_size: int | None = None,
) -> Observation:
    """Send perturbed copies of a sample through the network, a batch at a time, so that memory stays bounded."""
    batch_size = batch_size or min(128, 2 * task.batch_size_within_memory(128))  # smaller and larger ones are slower
    batch = task.batch([sample])
    inputs = inputs_of(batch)
    perturb = _perturbation_of(task, perturbation, inputs)
    mask = _padding_mask(inputs)
    recorded: list[list[NDArray[np.float32]]] = [[] for _ in slices.layers]
    losses: list[NDArray[np.float64]] = []
    used = _lookups(task, model, slices, batch)
    plain = torch.no_grad() if processes.shards() > 1 else torch.inference_mode()  # what is put together is used again
    with plain, recording(model, slices, used, mask) as take:
        for perturbed, count in _copies(perturb, inputs, copies, batch_size, generator):
            outputs, targets = task.outputs(model, with_inputs(repeated(batch, count), perturbed))
            # in single precision nearly equal losses tie, and the selection becomes unstable
            losses.append(task.sample_losses(outputs.double(), targets).cpu().numpy())
            for layer, rows, values in zip(slices.layers, recorded, take(), strict=True):
                rows.append(_per_copy(values, count, layer, mask).float().cpu().numpy())
    layers = tuple(
        LayerActivations(
            units=lookup.rows.cpu().numpy() if lookup else np.arange(layer.units), values=np.concatenate(rows)
        )
        for layer, lookup, rows in zip(slices.layers, used, recorded, strict=True)
    )
    return Observation(layers=layers, losses=np.concatenate(losses))


def pass_over(
    task: Task, sample: int, *, copies: int, perturbation: Perturbation | None, generator: torch.Generator
) -> None:
    """Draw the copies of a sample that another process observes, so that those after it are drawn as ever."""
    inputs = inputs_of(task.batch([sample]))
    for _ in _copies(_perturbation_of(task, perturbation, inputs), inputs, copies, copies, generator):
        pass


def _perturbation_of(task: Task, perturbation: Perturbation | None, inputs: Any) -> Perturbation:
    found: Perturbation = perturbation or cast(Any, task.perturbation) or default_perturbation(inputs)
    return found


def _copies(
    perturb: Perturbation, inputs: Any, copies: int, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Any, int]]:
    """Batches of perturbed copies, drawn a few at a time: so the batch size does not change what is drawn."""
    waiting: list[Any] = []
    count = 0
    for low in range(0, copies, DRAWN_TOGETHER):
        drawn = min(DRAWN_TOGETHER, copies - low)
        waiting.append(perturb(inputs, drawn, generator))
        count += drawn
        if count >= batch_size or low + drawn == copies:
            together = joined(waiting)
            for first in range(0, count, batch_size):
                last = min(first + batch_size, count)
                yield part(together, slice(first, last)), last - first
            waiting, count = [], 0


@dataclass(frozen=True)
class EmbeddingRows:
    """What a sample looks up in an embedding."""

    rows: Tensor
    """The different rows."""
    places: tuple[int, ...]
    """How many ids there are in each call."""


@contextmanager
def recording(
    model: nn.Module, slices: Slices, used: Sequence[EmbeddingRows | None] | None = None, mask: Tensor | None = None
) -> Iterator[Callable[[], list[Tensor]]]:
    """Watch the slices of every forward pass inside; the call that it gives hands out what was seen since the last.

    Of an embedding those rows are watched that ``used`` names, by default all. ``mask`` has 0 where the inputs are
    padded, which no mean over tokens includes.
    """
    looked_up: list[list[Tensor]] = [[] for _ in slices.layers]
    lookups = used or [None] * len(slices.layers)
    shown = [layer for layer in slices.layers if not layer.type.looks_up]

    def see(call: Call) -> Tensor:
        return shown[call.place].type.activations(call, mask)

    with capture(model, [layer.module for layer in shown], see) as outputs, _Ids(model, slices, looked_up):
        others = iter(outputs)
        seen = [
            ids if layer.type.looks_up else next(others) for layer, ids in zip(slices.layers, looked_up, strict=True)
        ]

        def take() -> list[Tensor]:
            values = []
            for layer, bucket, lookup in zip(slices.layers, seen, lookups, strict=True):
                require_calls(bucket, layer)
                values.append(_mean_of_calls(_counts(bucket, layer, lookup) if layer.type.looks_up else bucket))
                bucket.clear()
            return values

        yield take


class _Ids(TorchFunctionMode):
    """Sees the ids looked up in embeddings; a module's arguments may be others, as where it counts positions itself."""

    def __init__(self, model: nn.Module, slices: Slices, seen: list[list[Tensor]]) -> None:
        super().__init__()
        modules: dict[str, Any] = dict(model.named_modules())
        layers = zip(slices.layers, seen, strict=True)
        self._seen = [(modules[layer.module], bucket) for layer, bucket in layers if layer.type.looks_up]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.embedding:
            for module, bucket in self._seen:
                if args[1] is module.weight:  # now: of a model that is sharded it is another between two passes
                    bucket.append(args[0])
        return function(*args, **(kwargs or {}))


def _lookups(task: Task, model: nn.Module, slices: Slices, batch: Batch) -> list[EmbeddingRows | None]:
    """What a sample, as a batch of one, looks up in each embedding; None for other layers."""
    if not any(layer.type.looks_up for layer in slices.layers):
        return [None] * len(slices.layers)
    seen: list[list[Tensor]] = [[] for _ in slices.layers]
    with torch.no_grad(), _Ids(model, slices, seen):
        task.outputs(model, batch)
    found: list[EmbeddingRows | None] = []
    for layer, calls in zip(slices.layers, seen, strict=True):
        if not layer.type.looks_up:
            found.append(None)
            continue
        require_calls(calls, layer)
        rows = torch.cat([ids.flatten() for ids in calls]).unique()
        found.append(EmbeddingRows(rows, tuple(ids.numel() for ids in calls)))
    return found


def _counts(calls: list[Tensor], layer: Layer, lookup: EmbeddingRows | None) -> list[Tensor]:
    """How often each copy looks up each of the rows, in each call."""
    rows = lookup.rows if lookup else torch.arange(layer.units, device=calls[0].device)
    places = lookup.places if lookup else [ids[0].numel() for ids in calls]
    return [(ids.reshape(-1, count, 1) == rows).sum(1).float() for ids, count in zip(calls, places, strict=True)]


def require_calls(calls: Sequence[object], layer: Layer) -> None:
    """Refuse a layer that took no part in the forward pass."""
    if not calls:
        raise InputError(
            f"{layer.name} was not called in the forward pass; freeze it (requires_grad_(False)) to leave it as it is."
        )


def _mean_of_calls(calls: list[Tensor]) -> Tensor:
    """A layer that is called several times in a pass, maybe once for all copies, is seen by the mean of its calls."""
    return torch.stack(torch.broadcast_tensors(*calls)).mean(0) if len(calls) > 1 else calls[0]


def _per_copy(values: Tensor, count: int, layer: Layer, mask: Tensor | None) -> Tensor:
    """One row for each copy: some layers see the tokens of all copies as one list, or once what all have in common."""
    if len(values) == 1:
        return values.expand(count, -1)
    if len(values) % count:
        raise NotYetSupportedError(
            f"{layer.name} gave {len(values)} outputs for {count} copies of a sample, so it can't be told which belong "
            "to which copy; freeze it (requires_grad_(False)) to update the rest of the model."
        )
    return values if len(values) == count else mean_of_tokens(values.reshape(count, -1, values.shape[1]), mask)


def _padding_mask(inputs: Any) -> Tensor | None:
    """1 for the tokens of a text sample and 0 for its padding; None where there is none."""
    mask = token_mask(inputs)
    return mask if mask is not None and mask.ndim == 2 and 0 < mask.sum() < mask.numel() else None


def _normal(like: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    # drawn on the CPU, so that a seed means the same on every device
    return torch.randn((copies, *like.shape[1:]), generator=generator, dtype=like.dtype).to(like.device)


def _require_real(inputs: Any, name: str) -> Tensor:
    values = real_values(inputs)
    if values is None:
        kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"{name} needs real-valued inputs, not {kind}; use TokenReplacement for tokens.")
    return values
