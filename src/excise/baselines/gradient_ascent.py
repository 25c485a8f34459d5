"""Gradient ascent: undo the training on the samples by climbing up their loss."""

from __future__ import annotations

from torch import nn

from excise._support.checks import whole
from excise.baselines.passes import Pace, Pass, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "gradient-ascent",
    reference="Thudi et al. 2022",
    grid=[
        {"epochs": 3, "lr": 1e-3},
        {"epochs": 5, "lr": 1e-3},
        {"epochs": 5, "lr": 1e-2},
        {"epochs": 10, "lr": 1e-2},
    ],
)
def gradient_ascent(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    epochs: int = 5,
    lr: float = 1e-3,
    momentum: float = 0.0,
    batch_size: int = 64,
) -> nn.Module:
    """Take steps that raise the mean loss of the samples to forget.

    After Thudi, Deza, Chandrasekaran and Papernot (2022), "Unrolling SGD: Understanding Factors Influencing Machine
    Unlearning", who add the gradients of the samples back; the "negative gradient" of Golatkar, Achille and Soatto
    (2020). Nothing holds the model back but few and short steps: the retained samples are not looked at.

    Args:
        task: Data and objective; its weight decay is left out.
        seed: Decides the order of the samples and dropout.
        epochs: Passes over the samples to forget; later papers take 5.
        lr: Learning rate at the start (η); later papers take 1e-4 for deeper networks than those this is meant for.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(gradient_ascent(task, task.model, [2], seed=0, epochs=1, lr=0.1).weight.item(), 3)  # 2 + 0.1 (2 - 3)
    1.9
    """
    start = begin(task, model, forget, seed, forgotten=forgotten)
    loss = mean_loss(start)
    climb = Pass(start.forget, lambda ids: -loss(ids))
    return descend(start, [climb] * whole(epochs, "epochs"), Pace(lr, momentum, batch_size), weight_decay=0.0)
