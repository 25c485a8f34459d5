"""Fine-tuning: train on without the samples, and hope that they fade."""

from __future__ import annotations

from torch import nn

from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task
from excise.training.loop import Schedule, fit


@baseline(
    "fine-tune",
    reference="Golatkar et al. 2020",
    grid=[
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
        {"epochs": 5, "lr": 0.05},
        {"epochs": 5, "lr": 0.1},
    ],
)
def fine_tune(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
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
    start = begin(task, model, forget, seed, forgotten=forgotten)
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
