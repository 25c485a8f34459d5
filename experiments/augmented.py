"""Training with random crops and flips, while the task's own samples stay as they are."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from excise import Task

PADDING, BATCH = 4, 64


def fit_augmented(task: Task, ids: Tensor, *, epochs: int, lr: float, seed: int) -> nn.Module:
    """Train a copy of the task's model by SGD, with a learning rate that falls to 0, on images that differ each time.

    ``task.train_set`` must be a ``TensorDataset`` of images and labels. Channels lie side by side, which takes two
    thirds of the time.
    """
    model, generator = copy.deepcopy(task.model).train(), torch.Generator().manual_seed(seed)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = task.train_set.tensors
    batches = math.ceil(len(ids) / BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=task.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for _ in range(epochs):
        for some in ids[torch.randperm(len(ids), generator=generator)].tensor_split(batches):
            optimizer.zero_grad()
            seen = augmented(images[some], generator).contiguous(memory_format=torch.channels_last)
            functional.cross_entropy(model(seen), labels[some]).backward()
            optimizer.step()
            schedule.step()
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return model.eval()


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to four pixels, and every other one mirrored."""
    count, _, height, width = images.shape
    windows = functional.pad(images, (PADDING,) * 4, mode="reflect").unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=generator).squeeze(2)
    moved = windows[torch.arange(count), :, down, right]
    mirrored = torch.rand(count, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
