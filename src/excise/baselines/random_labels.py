"""Random labels: learn something wrong about the samples, so that what was right is overwritten."""

from __future__ import annotations

from torch import nn

from excise._support.checks import whole
from excise.baselines.classes import random_other_labels, relabelled_loss
from excise.baselines.passes import Pace, Pass, descend
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "random-labels",
    reference="Graves et al. 2021",
    grid=[
        {"epochs": 1, "lr": 0.01},
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
    ],
)
def random_labels(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    lr: float = 0.01,
    epochs: int = 3,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Train on, with a random other label for each of the samples to forget.

    After Graves, Nagisetty and Ganesh (2021), "Amnesiac Machine Learning", and the comparison of this name in Golatkar,
    Achille and Soatto (2020), "Eternal Sunshine of the Spotless Net". The labels are drawn once, never the true ones,
    and the samples are mixed among the retained ones, which keep theirs.

    Args:
        task: Data and objective; every sample has one class.
        seed: Decides the labels, the order of the samples and dropout.
        epochs: Passes over all samples.
        lr: Learning rate at the start.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(2, 1), torch.tensor([0, 1]))
    >>> task = Task(nn.Linear(1, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data, weight_decay=0.0)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> new = random_labels(task, task.model, [0], seed=0, epochs=1, lr=0.1)  # both samples are now of class 1
    >>> [round(value, 3) for value in new.weight.flatten().tolist()]  # - 0.1 (0.5, 0.5 - 1)
    [-0.05, 0.05]
    """
    start = begin(task, model, forget, seed, forgotten=forgotten)
    wrong = relabelled_loss(start, random_other_labels(start, "random_labels"))
    everything = Pass(start.present, wrong)
    pace = Pace(lr, momentum, batch_size)
    return descend(start, [everything] * whole(epochs, "epochs"), pace, weight_decay=task.weight_decay)
