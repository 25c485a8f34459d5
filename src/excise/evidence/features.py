"""What a network makes of its inputs just before it decides: the features that its last layer reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.errors import InputError
from excise.slices.layers import kind_of
from excise.task.batches import Batch, inputs_of, token_mask
from excise.task.hooks import Call, capture
from excise.task.ids import Ids
from excise.task.task import Task, evaluating

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
    names = [name for name, module in model.named_modules() if features_axis(module) is not None]
    last: list[Call] = []

    def remember(call: Call) -> None:
        last[:] = [call]  # of all layers: the others' inputs need not be kept

    with evaluating(model), torch.no_grad(), capture(model, names, remember):
        for batch in task.batches(chosen, task.batch_size_within_memory(256), dataset):
            last.clear()
            _, targets = task.outputs(model, batch)
            if not last:
                raise InputError("model calls no linear or convolutional layer, so it has no penultimate features.")
            features.append(sample_rows(last[0].module, last[0].input, batch, len(targets)).double().cpu().numpy())
    return np.concatenate(features)


def features_axis(module: nn.Module) -> int | None:
    """Where the module's input has its features; None for one that is no linear or convolutional layer."""
    kind = kind_of(module)
    return None if kind is None else kind.features_axis


def sample_rows(layer: nn.Module, seen: Tensor, batch: Batch, count: int) -> Tensor:
    """One row for each sample."""
    if len(seen) != count or seen.ndim < 2:
        raise InputError(
            f"model's last layer reads a tensor of shape {tuple(seen.shape)} for {count} samples, so its rows can't be "
            "told apart by sample; its first axis must be the samples'."
        )
    if features_axis(layer) == 1:
        return seen.flatten(2).mean(2)
    if seen.ndim == 2:
        return seen
    tokens = seen.flatten(1, -2)
    mask = token_mask(inputs_of(batch))
    if mask is None or mask.shape != tokens.shape[:2]:
        return tokens.mean(1)
    shown = mask.to(tokens)[:, :, None]
    mean: Tensor = (tokens * shown).sum(1) / shown.sum(1).clamp_min(1)
    return mean
