"""NegGrad+: gradient ascent on the samples to forget and descent on the others, at the same time."""

from __future__ import annotations

from torch import nn

from excise._support.checks import require, whole
from excise.baselines.passes import Pace, Pass, batches_for_ever, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "neg-grad-plus",
    reference="Kurmanji et al. 2023",
    grid=[
        {"alpha": 0.999, "lr": 0.01},
        {"alpha": 0.99, "lr": 0.01},
        {"alpha": 0.95, "lr": 0.01},
        {"alpha": 0.99, "lr": 0.05},
    ],
)
def neg_grad_plus(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 0.95,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Go down α · (mean loss of retained samples) - (1 - α) · (mean loss of those to forget).

    The strong simple comparison of Kurmanji, Triantafillou, Hayes and Triantafillou (2023), "Towards Unbounded Machine
    Unlearning". An epoch is a pass over the retained samples; those to forget come round as often as needed.

    Args:
        task: Data and objective, with its weight decay.
        seed: Decides the order of the samples and dropout.
        alpha: α, the weight of the retained samples; the published code has 0.95. With 1 this is ``fine_tune``.
        epochs: Passes over the retained samples; the published code has up to 10.
        lr: Learning rate at the start; the published code has 0.01.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch, of either kind.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> new = neg_grad_plus(task, task.model, [2], seed=0, alpha=0.5, epochs=1, lr=0.1)
    >>> round(new.weight.item(), 3)  # 2 - 0.1 (0.5 (2 - 1.5) - 0.5 (2 - 3))
    1.925
    """
    require(0 <= alpha <= 1, "alpha", alpha, "from 0 to 1")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    loss, to_forget = mean_loss(start), batches_for_ever(start.forget, batch_size, seed)
    both = Pass(start.retain, lambda ids: alpha * loss(ids) - (1 - alpha) * loss(next(to_forget)))
    pace = Pace(lr, momentum, batch_size)
    return descend(start, [both] * whole(epochs, "epochs"), pace, weight_decay=task.weight_decay)
