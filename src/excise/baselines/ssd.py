"""SSD, selective synaptic dampening: weaken the weights that the samples need much more than all the others do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise._support.checks import positive
from excise.baselines.importance import squared_gradients
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.parameters import trained_parameters
from excise.task.task import Task


@baseline(
    "ssd",
    reference="Foster et al. 2024",
    grid=[
        {"alpha": 5.0, "dampening": 1.0},
        {"alpha": 10.0, "dampening": 1.0},
        {"alpha": 50.0, "dampening": 1.0},
        {"alpha": 10.0, "dampening": 5.0},
    ],
)
def ssd(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 10.0,
    dampening: float = 1.0,
    samples: int | None = 1000,
) -> nn.Module:
    """Multiply the weights that matter to the samples to forget, more than α times as much as to all, by less than 1.

    After Foster, Schoepf and Brintrup (2024), "Fast Machine Unlearning Without Retraining Through Selective Synaptic
    Dampening". The importance of a weight is the mean of its squared gradients, taken sample by sample as in the
    paper's formula; the published code squares the gradients of batches.

    Args:
        seed: Decides which samples the importance to all is taken from.
        alpha: α: a weight is chosen if its importance to the samples is more than α times that to all; 10 in
            the published experiments on small images.
        dampening: λ: a chosen weight is multiplied by min(λ · importance to all / importance to the samples, 1);
            there 1.
        samples: How many of all training samples the importance to all is taken from (the paper: all); None for all.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(ssd(task, task.model, [2], seed=0, alpha=1.0, dampening=0.75).weight.item(), 4)  # 2 · 0.75 · (2/3) / 1
    1.0
    """
    positive(alpha, "alpha")
    positive(dampening, "dampening")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    everything = start.some_of(start.present, samples, "samples")
    to_all, to_forget = squared_gradients(start.task, everything), squared_gradients(start.task, start.forget)
    with torch.no_grad():
        for name, weight in trained_parameters(start.model).items():
            weight.mul_(_factors(to_all[name], to_forget[name], alpha, dampening))
    return start.model


def _factors(to_all: Tensor, to_forget: Tensor, alpha: float, dampening: float) -> Tensor:
    chosen = to_forget > alpha * to_all
    return torch.where(chosen, (dampening * to_all / to_forget).clamp_max(1), torch.ones_like(to_all))
