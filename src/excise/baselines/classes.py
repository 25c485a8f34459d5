"""What the methods for classifiers need to know of a task: its classes, and labels that are wrong on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from excise.baselines.passes import Loss
from excise.baselines.start import Start
from excise.errors import InputError
from excise.task.task import Task, evaluating


def require_classes(outputs: Tensor, targets: Tensor, method: str) -> None:
    """Refuse a task in which a sample does not have one class."""
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if not (whole and targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] > 1):
        raise InputError(
            f"{method} needs a task with one class per sample: targets of shape (n,) and whole numbers, outputs of "
            f"shape (n, classes), not {tuple(targets.shape)} of {targets.dtype} and {tuple(outputs.shape)}; use a "
            "method that does without labels, such as fine_tune or neg_grad_plus."
        )


def answers(task: Task, model: nn.Module, ids: Tensor, method: str, dataset: Any = None) -> tuple[Tensor, Tensor]:
    """What the model in eval mode says about the samples, one row each, and their classes."""
    with evaluating(model), torch.no_grad():
        batches = task.batches(ids, task.batch_size_within_memory(256), dataset)
        outputs, targets = zip(*(task.outputs(model, batch) for batch in batches), strict=True)
    said, classes = torch.cat(outputs), torch.cat(targets)
    require_classes(said, classes, method)
    return said, classes


def random_other_labels(start: Start, method: str) -> Tensor:
    """For every training sample a label: of one to forget, one of the others at random, and else -1."""
    generator = torch.Generator().manual_seed(start.seed)
    labels = torch.full((len(start.task.train_set),), -1)
    with torch.no_grad():
        for ids in start.forget.split(start.task.batch_size_within_memory(256)):
            outputs, targets = start.task.outputs(start.model, start.task.batch(ids))
            require_classes(outputs, targets, method)
            classes = outputs.shape[1]
            # a step of 1 to classes - 1 round the circle of labels ends at each of the others equally often
            labels[ids] = (targets.cpu() + torch.randint(1, classes, (len(ids),), generator=generator)) % classes
    return labels


def relabelled_loss(start: Start, labels: Tensor) -> Loss:
    """The mean loss of a batch, with the labels where there are any instead of the samples' own."""

    def loss(ids: Tensor) -> Tensor:
        outputs, targets = start.task.outputs(start.model, start.training_batch(ids))
        new = labels[ids].to(targets)
        return start.task.sample_losses(outputs, torch.where(new >= 0, new, targets)).mean()

    return loss
