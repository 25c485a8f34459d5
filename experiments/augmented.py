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

    ``task.train_set`` must be a ``TensorDataset`` of images and labels.
    """
    model, generator = copy.deepcopy(task.model).train(), torch.Generator().manual_seed(seed)
    images, labels = task.train_set.tensors
    batches = math.ceil(len(ids) / BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=task.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for _ in range(epochs):
        for some in ids[torch.randperm(len(ids), generator=generator)].tensor_split(batches):
            optimizer.zero_grad()
            functional.cross_entropy(model(augmented(images[some], generator)), labels[some]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to four pixels, and every other one mirrored."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (PADDING,) * 4, mode="reflect")
    down, right = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    first, second = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    moved = padded[first, second, rows[:, None, :, None], columns[:, None, None, :]]
    mirrored = torch.rand(count, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
