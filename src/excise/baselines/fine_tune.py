"""Fine-tuning: train on without the samples, and hope that they fade."""

from __future__ import annotations

from torch import nn

from excise.baselines.signature import begin
from excise.task import Ids, Task
from excise.training import Schedule, fit


def fine_tune(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
    schedule: Schedule = "cosine",
) -> nn.Module:
    """Train the model further on the retained samples alone.

    A comparison in Golatkar, Achille and Soatto (2020), "Eternal Sunshine of the Spotless Net: Selective Forgetting in
    Deep Networks", and in most papers since.

    Args:
        task: Data and objective.
        model: The trained model.
        forget: Positions in ``train_set``.
        seed: Decides the order of the samples and dropout.
        epochs: Passes over the retained samples; papers take up to 10.
        lr: Learning rate at the start; papers take about a tenth of that of the training.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.
        schedule: As in ``fit``, which does the work.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(fine_tune(task, task.model, [2], seed=0, epochs=1, lr=0.1).weight.item(), 3)  # 2 - 0.1 (2 - 1.5)
    1.95
    """
    start = begin(task, model, forget, seed)
    return fit(
        start.task,
        ids=start.retain,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        schedule=schedule,
        seed=seed,
    ).model
