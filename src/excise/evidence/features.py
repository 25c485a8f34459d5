"""What a network makes of its inputs just before it decides: the features that its last layer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.errors import InputError
from excise.task import Batch, Ids, Task, evaluating

Floats = NDArray[np.float64]


def penultimate(task: Task, model: nn.Module, ids: Ids | None = None, *, dataset: Any = None) -> Floats:
    """What the model's last layer reads, a row for each sample of the training set or of another; None for all of it.

    The last layer is the linear or convolutional one that is called last in a forward pass. A convolution's input is
    averaged over space, and a sequence over its tokens, those that ``attention_mask`` hides left out. The model is
    left as it was.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [-2.0]]), torch.tensor([0, 1]))
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    >>> _ = nn.init.constant_(model[0].weight, 3.0), nn.init.zeros_(model[0].bias)
    >>> penultimate(Task(model, nn.CrossEntropyLoss(reduction="none"), data), model).tolist()
    [[3.0], [0.0]]
    """
    data = task.train_set if dataset is None else dataset
    chosen = torch.arange(len(data)) if ids is None else torch.as_tensor(ids, dtype=torch.long)
    features = []
    with evaluating(model), torch.no_grad(), _last_layer(model) as last:
        for batch in task.batches(chosen, task.modest_batch(256), dataset):
            last.clear()
            _, targets = task.outputs(model, batch)
            if not last:
                raise InputError("model calls no linear or convolutional layer, so it has no penultimate features.")
            layer, seen = last
            features.append(_rows(layer, seen, batch, len(targets)).double().cpu().numpy())
    return np.concatenate(features)


@contextmanager
def _last_layer(model: nn.Module) -> Iterator[list[Any]]:
    """A list that holds, after a forward pass, the layer that was called last and its input."""
    last: list[Any] = []

    def remember(layer: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        last[:] = layer, inputs[0]

    layers = [module for module in model.modules() if _is_linear(module) or _is_convolution(module)]
    handles = [layer.register_forward_hook(remember) for layer in layers]
    try:
        yield last
    finally:
        for handle in handles:
            handle.remove()


def _is_linear(module: nn.Module) -> bool:
    # Hugging Face's Conv1D is a linear layer with its weight transposed
    return isinstance(module, nn.Linear) or (type(module).__name__ == "Conv1D" and hasattr(module, "nf"))


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)


def _rows(layer: nn.Module, seen: Tensor, batch: Batch, count: int) -> Tensor:
    """One row for each sample."""
    if len(seen) != count or seen.ndim < 2:
        raise InputError(
            f"model's last layer reads a tensor of shape {tuple(seen.shape)} for {count} samples, so its rows can't be "
            "told apart by sample; its first axis must be the samples'."
        )
    if _is_convolution(layer):
        return seen.flatten(2).mean(2)
    if seen.ndim == 2:
        return seen
    tokens = seen.flatten(1, -2)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is None or mask.shape != tokens.shape[:2]:
        return tokens.mean(1)
    shown = mask.to(tokens)[:, :, None]
    mean: Tensor = (tokens * shown).sum(1) / shown.sum(1).clamp_min(1)
    return mean
