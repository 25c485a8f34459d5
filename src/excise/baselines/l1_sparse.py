"""l1-sparse: fine-tuning with a penalty on the size of all weights, which fades out."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from excise._support.checks import number, require, whole
from excise.baselines.passes import Pace, Pass, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.parameters import trained_parameters
from excise.task.task import Task


@baseline(
    "l1-sparse",
    reference="Jia et al. 2023",
    grid=[
        {"alpha": 1e-4, "lr": 0.01},
        {"alpha": 5e-4, "lr": 0.01},
        {"alpha": 5e-4, "lr": 0.05},
        {"alpha": 2e-3, "lr": 0.01},
    ],
)
def l1_sparse(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 5e-4,
    epochs: int = 5,
    plain_epochs: int = 0,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Go down (mean loss of retained samples) + α(epoch) ‖w‖₁, with an α that falls linearly to 0.

    After Jia, Liu, Ram, Yao, Liu, Liu, Sharma and Liu (2023), "Model Sparsity Can Simplify Machine Unlearning": weights
    that few samples need go to 0, and what the forgotten samples left behind goes with them. The penalty is of all
    trained parameters, with its subgradient α sign(w), as in the published code. That takes steps in the learning rate
    where this has a cosine.

    Args:
        task: Data and objective, with its weight decay.
        seed: Decides the order of the samples and dropout.
        alpha: α of the first epoch; of epoch e it is α (1 - e / (epochs - plain_epochs)). 5e-4 is usual for ResNet-18.
            0 makes this ``fine_tune``.
        epochs: Passes over the retained samples; the published code has 10.
        plain_epochs: How many of them, the last, have no penalty at all.
        lr: Learning rate at the start; there 0.01.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> new = l1_sparse(task, task.model, [2], seed=0, alpha=0.1, epochs=1, lr=0.1)
    >>> round(new.weight.item(), 3)  # 2 - 0.1 (2 - 1.5 + 0.1)
    1.94
    """
    number(alpha, "alpha")
    turns, plain = whole(epochs, "epochs"), whole(plain_epochs, "plain_epochs", 0)
    require(plain < turns, "plain_epochs", plain_epochs, f"less than epochs={epochs}")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    loss, weights = mean_loss(start), list(trained_parameters(start.model).values())

    def penalised(strength: float, ids: Tensor) -> Tensor:
        return loss(ids) + strength * torch.stack([weight.abs().sum() for weight in weights]).sum()

    passes = [Pass(start.retain, partial(penalised, one)) for one in strengths(alpha, turns, plain)]
    return descend(start, passes, Pace(lr, momentum, batch_size), weight_decay=task.weight_decay)


def strengths(alpha: float, epochs: int, plain_epochs: int) -> list[float]:
    """The penalty's weight in each epoch.

    >>> [round(one, 2) for one in strengths(0.3, 4, 1)]
    [0.3, 0.2, 0.1, 0.0]
    """
    penalised = epochs - plain_epochs
    return [alpha * (1 - epoch / penalised) for epoch in range(penalised)] + [0.0] * plain_epochs
