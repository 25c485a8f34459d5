"""Perturb a sample, send the copies through the network, and watch: -> (activations of every slice, losses)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from excise.errors import InputError
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

    def __call__(self, inputs: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """Perturbed copies of a batch of one."""
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

    ``vocabulary`` is the range of ids to draw from; ``keep`` are the ids that are never replaced nor drawn.
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
            copied[self.key] = self(inputs[self.key], copies, generator)
            return copied
        low, high = self.vocabulary
        ids = _repeat(inputs, copies)
        allowed = torch.tensor([i for i in range(low, high) if i not in set(self.keep)])
        drawn = allowed[torch.randint(len(allowed), ids.shape, generator=generator)].to(ids)
        replaced = (torch.rand(ids.shape, generator=generator) < self.rate).to(ids.device)
        kept = torch.isin(ids, torch.tensor(self.keep, dtype=ids.dtype, device=ids.device))
        return torch.where(replaced & ~kept, drawn, ids)


def default_perturbation(inputs: Any) -> Perturbation:
    """Gaussian noise for real-valued inputs; anything else needs a perturbation of its own."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return GaussianNoise()
    raise InputError(
        "the inputs are not real numbers, so Gaussian noise does not apply; pass perturbation=, "
        "TokenReplacement.for_tokenizer(tokenizer) for text."
    )


@dataclass(frozen=True)
class Watched:
    """What a layer's units did over the copies of a sample."""

    units: NDArray[np.int64]
    """Which units were watched: all, or for an embedding those that the sample uses."""
    values: NDArray[np.float32]
    """Copies × units; a unit with several outputs (places of an image, tokens of a text) by their mean."""


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
    batch_size: int = 128,
) -> Observation:
    """Send perturbed copies of a sample through the network, a batch at a time, so that memory stays bounded."""
    batch = task.batch([sample])
    inputs, rebuild = _split(batch)
    perturb = perturbation or default_perturbation(inputs)
    used = _tokens_of(inputs)
    recorded: list[list[NDArray[np.float32]]] = [[] for _ in slices.layers]
    losses: list[NDArray[np.float64]] = []
    with torch.no_grad(), recording(model, slices, used) as take:
        for perturbed, count in _copies(perturb, inputs, copies, batch_size, generator):
            outputs, targets = task.outputs(model, rebuild(perturbed, count))
            # in single precision nearly equal losses tie, and the selection becomes unstable
            losses.append(task.sample_losses(outputs.double(), targets).cpu().numpy())
            for rows, values in zip(recorded, take(), strict=True):
                rows.append(values.float().cpu().numpy())
    layers = tuple(
        Watched(units=_units(layer, used), values=np.concatenate(rows))
        for layer, rows in zip(slices.layers, recorded, strict=True)
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
            yield _joined(waiting), count
            waiting, count = [], 0


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return torch.cat(parts)


@contextmanager
def recording(model: nn.Module, slices: Slices, used: Tensor | None = None) -> Iterator[Callable[[], list[Tensor]]]:
    """Watch the slices of every forward pass inside; the call that it gives hands out what was seen since the last."""
    seen: list[list[Tensor]] = [[] for _ in slices.layers]
    modules = dict(model.named_modules())
    handles = [
        _hook(modules[layer.module], layer, bucket, used) for layer, bucket in zip(slices.layers, seen, strict=True)
    ]

    def take() -> list[Tensor]:
        values = [_mean_of_calls(bucket, layer) for bucket, layer in zip(seen, slices.layers, strict=True)]
        for bucket in seen:
            bucket.clear()
        return values

    try:
        yield take
    finally:
        for handle in handles:
            handle.remove()


def _mean_of_calls(bucket: list[Tensor], layer: Layer) -> Tensor:
    """What was seen of a layer; one that is called several times in a pass is seen by the mean of its calls."""
    if not bucket:
        raise InputError(
            f"{layer.name} took no part in the forward pass; freeze it (requires_grad_(False)) if it is not used."
        )
    return torch.stack(bucket).mean(0) if len(bucket) > 1 else bucket[0]


def _hook(module: nn.Module, layer: Layer, bucket: list[Tensor], used: Tensor | None) -> Any:
    if isinstance(module, nn.MultiheadAttention):
        return _attention_hook(module, layer, bucket)
    if layer.kind == "embedding":

        def count(_: nn.Module, args: tuple[Any, ...], __: Any) -> None:
            ids = args[0].flatten(1)
            tokens = torch.arange(layer.units, device=ids.device) if used is None else used.to(ids.device)
            bucket.append((ids[:, :, None] == tokens).sum(1).float())

        return module.register_forward_hook(count)
    channels_first = "convolution" in layer.kind

    def average(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        middle = tuple(range(2, output.ndim)) if channels_first else tuple(range(1, output.ndim - 1))
        bucket.append(output.mean(middle) if middle else output.clone())

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


def _units(layer: Layer, used: Tensor | None) -> NDArray[np.int64]:
    if layer.kind == "embedding" and used is not None:
        return used.cpu().numpy()
    return np.arange(layer.units)


def _tokens_of(inputs: Any) -> Tensor | None:
    """The different tokens of a text sample, else None."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    return ids.unique() if isinstance(ids, Tensor) and not ids.is_floating_point() else None


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


def _require_real(inputs: Any, name: str) -> None:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"{name} needs real-valued inputs, not {kind}; use TokenReplacement for tokens.")
