"""SCRUB: a student that obeys its teacher, the original model, except on the samples to forget."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from excise._support.checks import positive, require, whole
from excise.baselines.classes import require_classes
from excise.baselines.passes import Pace, Pass, descend
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "scrub",
    reference="Kurmanji et al. 2023",
    grid=[
        {"epochs": 3, "max_epochs": 1, "lr": 0.01},
        {"epochs": 3, "max_epochs": 2, "lr": 0.01},
        {"epochs": 5, "max_epochs": 3, "lr": 0.01},
        {"epochs": 5, "max_epochs": 3, "lr": 0.005},
    ],
)
def scrub(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 0.5,
    gamma: float = 1.0,
    temperature: float = 2.0,
    epochs: int = 5,
    max_epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Move away from the original model on the samples to forget and stay near it on the others, in turns.

    After Kurmanji, Triantafillou, Hayes and Triantafillou (2023), "Towards Unbounded Machine Unlearning". A turn is a
    pass over the samples to forget that raises the divergence KL(original ‖ model), then one over the retained samples
    that lowers α · KL + γ · loss; the last turns leave the first part out. The divergence is flat where the two models
    agree, so the very first step on the samples to forget does nothing. The paper's rewinding is left out, and plain
    SGD with a learning rate that falls along a cosine takes the place of Adam with steps.

    Args:
        task: Data and objective; every sample has one class.
        model: The trained model, the teacher.
        seed: Decides the order of the samples and dropout.
        alpha: α, weight of the divergence on retained samples; the published code for small data has 0.5.
        gamma: γ, weight of their loss; there 1.
        temperature: By which both models' outputs are divided in the divergence, which is multiplied with its square;
            there 2.
        epochs: Turns; there 10.
        max_epochs: How many of them, the first, have a pass over the samples to forget (M); there 3.
        lr: Learning rate at the start; there 5e-4, of Adam.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch, of either kind.

    >>> data = torch.utils.data.TensorDataset(torch.ones(2, 1), torch.tensor([0, 1]))
    >>> task = Task(nn.Linear(1, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data, weight_decay=0.0)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> new = scrub(task, task.model, [0], seed=0, epochs=1, max_epochs=0, lr=0.1)  # a step on the retained sample
    >>> [round(value, 3) for value in new.weight.flatten().tolist()]  # - 0.1 (0.5, 0.5 - 1)
    [-0.05, 0.05]
    """
    for name, value in {"alpha": alpha, "gamma": gamma}.items():
        require(0 <= value < float("inf"), name, value, "a non-negative number")
    positive(temperature, "temperature")
    turns, away = whole(epochs, "epochs"), whole(max_epochs, "max_epochs", 0)
    require(away <= turns, "max_epochs", max_epochs, f"at most epochs={epochs}")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    teacher = copy.deepcopy(start.model)

    def far(ids: Tensor) -> Tensor:
        return -_answers(start, teacher, ids, temperature)[1]

    def near(ids: Tensor) -> Tensor:
        loss, divergence = _answers(start, teacher, ids, temperature)
        return alpha * divergence + gamma * loss

    turn = [Pass(start.forget, far), Pass(start.retain, near)]
    passes = turn * away + turn[1:] * (turns - away)
    return descend(start, passes, Pace(lr, momentum, batch_size), weight_decay=task.weight_decay)


def _answers(start: Start, teacher: nn.Module, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Mean loss of the student, and mean divergence from the teacher."""
    batch = start.training_batch(ids)
    outputs, targets = start.task.outputs(start.model, batch)
    require_classes(outputs, targets, "scrub")
    with torch.no_grad():
        taught = start.task.outputs(teacher, batch)[0]
    return start.task.sample_losses(outputs, targets).mean(), divergence(taught, outputs, temperature)


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Mean of T² KL(teacher ‖ student) of the outputs divided by T.

    >>> round(divergence(torch.tensor([[0.0, 0.0]]), torch.log(torch.tensor([[1.0, 3.0]])), 1.0).item(), 4)
    0.1438
    """  # ½ log(½ / ¼) + ½ log(½ / ¾)
    p, q = ((outputs / temperature).log_softmax(1) for outputs in (teacher, student))
    return temperature**2 * kl_div(q, p, reduction="batchmean", log_target=True)
