"""Perturb a sample, send the copies through the network, and watch: -> (activations of every slice, losses)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from excise.errors import InputError, NotYetSupportedError
from excise.slices import Layer, Slices
from excise.task import Batch, Task

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
        key = _real_entry(inputs)
        if key is not None:
            rest = {name: _repeat(value, copies) for name, value in inputs.items()}
            return {**rest, key: self(inputs[key], copies, generator)}
        _require_real(inputs, "GaussianNoise")
        noise = self.scale * _normal(inputs, copies, generator)
        return inputs + noise


@dataclass(frozen=True)
class ScaledNoise:
    """Add noise in proportion to each column's spread: for rows of a table.

    ``spread`` is one standard deviation per column, such as ``X.std(0)``.
    """

    spread: Tensor
    scale: float = 0.1

    def __call__(self, inputs: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """Perturbed copies of a batch of one."""
        _require_real(inputs, "ScaledNoise")
        noise = self.scale * self.spread.to(inputs) * _normal(inputs, copies, generator)
        return inputs + noise


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
        if isinstance(inputs, Mapping):
            if self.key not in inputs:
                raise InputError(f"the inputs have no {self.key!r} to replace tokens in; they have {list(inputs)}.")
            copied = {name: _repeat(value, copies) for name, value in inputs.items()}
            ids, mask = copied[self.key], copied.get("attention_mask")
            copied[self.key] = self(inputs[self.key], copies, generator)
            if isinstance(mask, Tensor) and mask.shape == ids.shape:
                copied[self.key] = torch.where(mask.bool(), copied[self.key], ids)
            return copied
        ids = _repeat(inputs, copies)
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
    if _real_entry(inputs) is not None or (isinstance(inputs, Tensor) and inputs.is_floating_point()):
        return GaussianNoise()
    raise InputError(
        "the inputs are not real numbers, so Gaussian noise does not apply; pass perturbation=, "
        "TokenReplacement.for_tokenizer(tokenizer) for text."
    )


@dataclass(frozen=True)
class Watched:
    """What a layer's units did over the copies of a sample."""

    units: NDArray[np.int64]
    """Which units were watched: all, or for an embedding the rows that the sample looks up."""
    values: NDArray[np.float32]
    """Copies × units; a unit with several outputs (places of an image, tokens of a text) by their mean, without
    padding."""


@dataclass(frozen=True)
class Observation:
    """Activations of all slices and losses, over the copies of one sample."""

    layers: tuple[Watched, ...]
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
    batch_size = batch_size or min(128, 2 * task.modest_batch(128))  # smaller and larger ones are slower
    batch = task.batch([sample])
    inputs, rebuild = _split(batch)
    perturb = perturbation or default_perturbation(inputs)
    mask = _padding_mask(inputs)
    recorded: list[list[NDArray[np.float32]]] = [[] for _ in slices.layers]
    losses: list[NDArray[np.float64]] = []
    used = _lookups(task, model, slices, batch)
    with torch.inference_mode(), recording(model, slices, used, mask) as take:
        for perturbed, count in _copies(perturb, inputs, copies, batch_size, generator):
            outputs, targets = task.outputs(model, rebuild(perturbed, count))
            # in single precision nearly equal losses tie, and the selection becomes unstable
            losses.append(task.sample_losses(outputs.double(), targets).cpu().numpy())
            for layer, rows, values in zip(slices.layers, recorded, take(), strict=True):
                rows.append(_per_copy(values, count, layer, mask).float().cpu().numpy())
    layers = tuple(
        Watched(units=lookup.rows.cpu().numpy() if lookup else np.arange(layer.units), values=np.concatenate(rows))
        for layer, lookup, rows in zip(slices.layers, used, recorded, strict=True)
    )
    return Observation(layers=layers, losses=np.concatenate(losses))


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
            joined = _joined(waiting)
            for first in range(0, count, batch_size):
                last = min(first + batch_size, count)
                yield _part(joined, slice(first, last)), last - first
            waiting, count = [], 0


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return torch.cat(parts)


def _part(copies: Any, some: slice) -> Any:
    if isinstance(copies, Mapping):
        return {key: value[some] for key, value in copies.items()}
    return copies[some]


@dataclass(frozen=True)
class Lookup:
    """What a sample looks up in an embedding."""

    rows: Tensor
    """The different rows."""
    places: tuple[int, ...]
    """How many ids there are in each call."""


@contextmanager
def recording(
    model: nn.Module, slices: Slices, used: Sequence[Lookup | None] | None = None, mask: Tensor | None = None
) -> Iterator[Callable[[], list[Tensor]]]:
    """Watch the slices of every forward pass inside; the call that it gives hands out what was seen since the last.

    Of an embedding those rows are watched that ``used`` names, by default all. ``mask`` has 0 where the inputs are
    padded, which no mean over tokens includes.
    """
    seen: list[list[Tensor]] = [[] for _ in slices.layers]
    lookups = used or [None] * len(seen)
    modules = dict(model.named_modules())
    handles = [
        _hook(modules[layer.module], layer, bucket, mask)
        for layer, bucket in zip(slices.layers, seen, strict=True)
        if layer.kind != "embedding"
    ]

    def take() -> list[Tensor]:
        values = []
        for layer, bucket, lookup in zip(slices.layers, seen, lookups, strict=True):
            require_calls(bucket, layer)
            values.append(_mean_of_calls(_counts(bucket, layer, lookup) if layer.kind == "embedding" else bucket))
            bucket.clear()
        return values

    try:
        with _Ids(model, slices, seen):
            yield take
    finally:
        for handle in handles:
            handle.remove()


class _Ids(TorchFunctionMode):
    """Sees the ids looked up in embeddings; a module's arguments may be others, as where it counts positions itself."""

    def __init__(self, model: nn.Module, slices: Slices, seen: list[list[Tensor]]) -> None:
        super().__init__()
        modules = dict(model.named_modules())
        layers = zip(slices.layers, seen, strict=True)
        self._seen = {id(modules[layer.module].weight): bucket for layer, bucket in layers if layer.kind == "embedding"}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.embedding and id(args[1]) in self._seen:
            self._seen[id(args[1])].append(args[0])
        return function(*args, **(kwargs or {}))


def _lookups(task: Task, model: nn.Module, slices: Slices, batch: Batch) -> list[Lookup | None]:
    """What a sample, as a batch of one, looks up in each embedding; None for other layers."""
    if all(layer.kind != "embedding" for layer in slices.layers):
        return [None] * len(slices.layers)
    seen: list[list[Tensor]] = [[] for _ in slices.layers]
    with torch.no_grad(), _Ids(model, slices, seen):
        task.outputs(model, batch)
    found: list[Lookup | None] = []
    for layer, calls in zip(slices.layers, seen, strict=True):
        if layer.kind != "embedding":
            found.append(None)
            continue
        require_calls(calls, layer)
        rows = torch.cat([ids.flatten() for ids in calls]).unique()
        found.append(Lookup(rows, tuple(ids.numel() for ids in calls)))
    return found


def _counts(calls: list[Tensor], layer: Layer, lookup: Lookup | None) -> list[Tensor]:
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
    return values if len(values) == count else _mean_of_tokens(values.reshape(count, -1, values.shape[1]), mask)


def _mean_of_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the second axis; where that is the sample's tokens, without padding."""
    if mask is None or values.shape[1] != mask.shape[1]:
        return values.mean(1)
    return (values * mask[:, :, None]).sum(1) / mask.sum()


def _hook(module: nn.Module, layer: Layer, bucket: list[Tensor], mask: Tensor | None) -> Any:
    if isinstance(module, nn.MultiheadAttention):
        return _attention_hook(module, layer, bucket)
    channels_first = "convolution" in layer.kind

    def average(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        if output.ndim == 2:
            bucket.append(output.clone())
        else:
            places = output.flatten(2).mT if channels_first else output.flatten(1, -2)
            bucket.append(_mean_of_tokens(places, None if channels_first else mask))

    return module.register_forward_hook(average)


def _attention_hook(module: nn.MultiheadAttention, layer: Layer, bucket: list[Tensor]) -> Any:
    part = layer.name.rpartition(".")[2]
    tokens = 1 if module.batch_first else 0
    if part == "out_proj":

        def output_hook(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            bucket.append(output[0].mean(tokens))

        return module.register_forward_hook(output_hook)
    index = "qkv".index(part[0])
    rows = slice(index * module.embed_dim, (index + 1) * module.embed_dim)

    def project(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | options
        source = given[("query", "key", "value")[index]].mean(tokens)
        bias = None if module.in_proj_bias is None else module.in_proj_bias[rows]
        bucket.append(functional.linear(source, module.in_proj_weight[rows], bias))

    return module.register_forward_pre_hook(project, with_kwargs=True)


def _padding_mask(inputs: Any) -> Tensor | None:
    """1 for the tokens of a text sample and 0 for its padding; None where there is none."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 and 0 < mask.sum() < mask.numel() else None


def _split(batch: Batch) -> tuple[Any, Callable[[Any, int], Batch]]:
    """The inputs of a batch of one, and how to make a batch of perturbed ones."""
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        if "labels" not in batch:
            return inputs, lambda perturbed, _: perturbed
        return inputs, lambda perturbed, copies: {**perturbed, "labels": _repeat(batch["labels"], copies)}
    return batch[0], lambda perturbed, copies: [perturbed, *(_repeat(rest, copies) for rest in batch[1:])]


def _repeat(value: Any, copies: int) -> Any:
    return value.expand(copies, *value.shape[1:]) if isinstance(value, Tensor) else value


def _normal(like: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    # drawn on the CPU, so that a seed means the same on every device
    return torch.randn((copies, *like.shape[1:]), generator=generator, dtype=like.dtype).to(like.device)


def _real_entry(inputs: Any) -> str | None:
    """The name of the real-valued inputs in a mapping without tokens."""
    if not isinstance(inputs, Mapping) or "input_ids" in inputs:
        return None
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            return str(name)
    return None


def _require_real(inputs: Any, name: str) -> None:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"{name} needs real-valued inputs, not {kind}; use TokenReplacement for tokens.")
