"""LoTUS: be as unsure of the samples to forget as held-out accuracy says that a model should be."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gumbel_softmax

from excise._support.checks import number, require, whole
from excise.baselines.classes import answers
from excise.baselines.held_out import held_out_positions
from excise.baselines.passes import Pace, Pass, descend
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.task.ids import Ids
from excise.task.task import Task

OVERSHOT = 0.01  # forgotten accuracy so far below the aim ends it, as in the published code


@baseline(
    "lotus",
    reference="Spartalis et al. 2025",
    grid=[
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
        {"epochs": 10, "lr": 0.01},
        {"alpha": 8.0, "epochs": 3, "lr": 0.01},
    ],
)
def lotus(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 2.0,
    share: float = 0.3,
    aim: float | None = None,
    held_out: Ids | None = None,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Learn the original model's answers anew, those to the samples to forget smoothed by a temperature.

    After Spartalis, Semertzidis, Gavves and Daras (2025), "LoTUS: Large-Scale Machine Unlearning with a Taste of
    Uncertainty". The temperature is τ = exp(α (accuracy on the samples to forget - held-out accuracy)). The first is
    of the model as it is, anew before each epoch, the second of the original; once the first is 0.01 or more below the
    second, training ends. Targets are drawn by Gumbel-softmax from the original's outputs, with τ for samples to forget
    and as a single class for a random share of the retained ones. Labels serve to count what is right, and nothing
    else. The published code has AdamW where this has SGD. Samples that the original knows worse than held-out ones,
    such as the hardest, are thus not forgotten at all: the model comes back as it was.

    **It reads held-out data**, if only their accuracy: figures on the same samples of ``test_set`` are no longer quite
    those of unseen data.

    Args:
        task: Data and objective; every sample has one class.
        model: The trained model, the teacher.
        seed: Decides the share of retained samples, the noise, the order of the samples and dropout.
        held_out: Positions in ``test_set`` of the samples to count; None for all.
        aim: The accuracy on the samples to forget to aim at; None for that on held-out samples. The paper has 0 for a
            whole class. With a number, no ``test_set`` is needed.
        alpha: α; there 2.
        share: Share of the retained samples to train on; there 0.3.
        epochs: Passes over the samples to forget and this share; there 3 for transformers, 10 for ResNet-18.
        lr: Learning rate at the start.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([0, 0, 1]))
    >>> task = Task(nn.Linear(1, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data, data)
    >>> _ = task.model.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> new = lotus(task, task.model, [2], seed=0)  # which is answered wrongly as it is, held-out ones are not all
    >>> torch.equal(new.weight, task.model.weight)
    True
    """
    number(alpha, "alpha")
    require(0 < share <= 1, "share", share, "above 0 and at most 1")
    require(aim is None or 0 <= aim <= 1, "aim", aim, "from 0 to 1, or None")
    turns, pace = whole(epochs, "epochs"), Pace(lr, momentum, batch_size)
    start = begin(task, model, forget, seed, forgotten=forgotten)
    teacher = copy.deepcopy(start.model)
    smoothing = Smoothing(start, alpha, _held_out_accuracy(start, held_out) if aim is None else aim)
    to_forget = torch.zeros(len(task.train_set), dtype=torch.bool)
    to_forget[start.forget] = True

    def loss(ids: Tensor) -> Tensor:
        batch = start.training_batch(ids)
        outputs = start.task.outputs(start.model, batch)[0]
        with torch.no_grad():
            taught = start.task.outputs(teacher, batch)[0]
            targets = drawn_targets(taught, to_forget[ids].to(taught.device), smoothing.temperature)
        return -(targets * outputs.log_softmax(1)).sum(1).mean()

    if smoothing.done():
        return start.model
    some = start.some_of(start.retain, max(1, round(share * len(start.retain))), "share")
    passes = [Pass(torch.cat([start.forget, some]), loss)] * turns
    return descend(start, passes, pace, weight_decay=task.weight_decay, done=smoothing.done)


class Smoothing:
    """The temperature, which follows the accuracy on the samples to forget."""

    def __init__(self, start: Start, alpha: float, aim: float) -> None:
        self._start, self._alpha, self._aim = start, alpha, aim
        self.temperature = 1.0

    def done(self) -> bool:
        """Set the temperature for the model as it is; whether it is below the aim, and there is nothing left to do."""
        start = self._start
        above = accuracy(*answers(start.task, start.model, start.forget, "lotus")) - self._aim
        self.temperature = math.exp(self._alpha * above)
        return above <= -OVERSHOT


def drawn_targets(outputs: Tensor, to_forget: Tensor, temperature: float) -> Tensor:
    """What to learn of each of the teacher's rows: probabilities at this temperature; if it is retained, one class."""
    soft = gumbel_softmax(outputs, tau=temperature, dim=1)
    return torch.where(to_forget[:, None], soft, gumbel_softmax(outputs, hard=True, dim=1))


def accuracy(outputs: Tensor, classes: Tensor) -> float:
    """Share of rows whose largest output is that of the class."""
    return float((outputs.argmax(1) == classes).double().mean())


def _held_out_accuracy(start: Start, held_out: Ids | None) -> float:
    ids = held_out_positions(start.task, held_out, "lotus")
    return accuracy(*answers(start.task, start.model, ids, "lotus", start.task.test_set))
