"""SalUn: random labels, but only the weights that matter most for the samples to forget may move."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise._support.checks import require, whole
from excise.baselines.classes import random_other_labels, relabelled_loss
from excise.baselines.passes import Pace, Pass, descend
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.objective import gradient
from excise.task.parameters import Tensors
from excise.task.task import Task


@baseline(
    "salun",
    reference="Fan et al. 2024",
    grid=[
        {"share": 0.5, "epochs": 1, "lr": 0.01},
        {"share": 0.5, "epochs": 3, "lr": 0.01},
        {"share": 0.5, "epochs": 3, "lr": 0.05},
        {"share": 0.3, "epochs": 3, "lr": 0.05},
    ],
)
def salun(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    share: float = 0.5,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Learn random labels with the weights whose gradient on the samples to forget is largest; the others stay.

    After Fan, Liu, Zhang, Wong, Wei and Liu (2024), "SalUn: Empowering Machine Unlearning via Gradient-based Weight
    Saliency in Both Image Classification and Generation". The retained samples count like those to forget (their α, a
    weight of the retained loss, is not an option here), and weights outside the mask stay exactly as they were, as in
    the paper's formula; its code lets weight decay move them. Batch statistics are not weights and move.

    Args:
        task: Data and objective; every sample has one class.
        seed: Decides the labels, the order of the samples and dropout.
        share: Share of the weights in the mask; the paper's threshold γ is the median of the gradient, so 0.5.
        epochs: Passes over all samples; the published code has 10.
        lr: Learning rate at the start.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    >>> task = Task(nn.Linear(2, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data, weight_decay=0.0)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> new = salun(task, task.model, [0], seed=0, epochs=1, lr=0.1)  # the second input has the larger gradient
    >>> [[round(value, 3) for value in row] for row in new.weight.tolist()]
    [[0.0, -0.1], [0.0, 0.1]]
    """
    require(0 < share <= 1, "share", share, "above 0 and at most 1")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    wrong = relabelled_loss(start, random_other_labels(start, "salun"))
    everything = Pass(start.present, wrong)
    return descend(
        start,
        [everything] * whole(epochs, "epochs"),
        Pace(lr, momentum, batch_size),
        weight_decay=task.weight_decay,
        moves=largest(gradient(start.task, start.model, start.forget), share),
    )


def largest(tensors: Tensors, share: float) -> dict[str, Tensor]:
    """Where this share of all the values is, the largest in size; of equal ones, the first.

    >>> largest({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([3.0, 2.0])}, 0.5)
    {'a': tensor([False,  True]), 'b': tensor([ True, False])}
    """
    sizes = torch.cat([tensor.flatten() for tensor in tensors.values()]).abs()
    mask = torch.zeros_like(sizes, dtype=torch.bool)
    mask[sizes.argsort(descending=True, stable=True)[: max(1, round(share * len(sizes)))]] = True
    pieces = mask.split([tensor.numel() for tensor in tensors.values()])
    return {name: piece.view_as(tensors[name]) for name, piece in zip(tensors, pieces, strict=True)}
