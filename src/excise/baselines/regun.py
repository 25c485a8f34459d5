"""ReGUn: teach the model to speak of the samples to forget as it speaks of others of their class that it never saw."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from excise._support.checks import number, whole
from excise.baselines.classes import answers
from excise.baselines.held_out import held_out_positions
from excise.baselines.passes import Pace, Pass, batches_for_ever, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.errors import InputError
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "regun",
    reference="Mirlach et al. 2026",
    grid=[
        {"alpha": 0.03, "lr": 0.01},
        {"alpha": 0.1, "lr": 0.01},
        {"alpha": 0.3, "lr": 0.01},
        {"alpha": 1.0, "lr": 0.003},
    ],
)
def regun(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    held_out: Ids | None = None,
    alpha: float = 1.0,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Go down (mean loss of retained samples) + α · KL(q ‖ model) on those to forget.

    q is what the original model says, in probabilities, about held-out samples of the same class, on average. After
    Mirlach, Laguna and Vogt (2026), "Reference-Guided Machine Unlearning". There a batch of samples to forget has one
    q, the mean over held-out samples drawn with the same frequencies of classes. Here each sample has the q of its own
    class, over all its held-out samples: the same for a batch of one class, and without the noise of the draw. An epoch
    is a pass over the retained samples; those to forget come round as often as needed.

    **It reads held-out data**: figures on the same samples of ``test_set`` are no longer those of unseen data.

    Args:
        task: Data and objective; every sample has one class, and ``test_set`` has some of each class to forget.
        model: The trained model, also the reference.
        seed: Decides the order of the samples and dropout.
        held_out: Positions in ``test_set`` of the samples to learn from; None for all.
        alpha: Weight of the divergence. With 0 this is ``fine_tune``.
        epochs: Passes over the retained samples.
        lr: Learning rate at the start.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch, of either kind.

    >>> data = torch.utils.data.TensorDataset(torch.ones(2, 1), torch.tensor([0, 1]))
    >>> task = Task(nn.Linear(1, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data, data, weight_decay=0.0)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> new = regun(task, task.model, [0], seed=0, epochs=1, lr=0.1)  # q is (0.5, 0.5) and so is what it says
    >>> [round(value, 3) for value in new.weight.flatten().tolist()]  # - 0.1 (0.5, 0.5 - 1), of the retained sample
    [-0.05, 0.05]
    """
    number(alpha, "alpha")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    references = class_means(start, held_out_positions(task, held_out, "regun"))
    loss, to_forget = mean_loss(start), batches_for_ever(start.forget, batch_size, seed)

    def divergence(ids: Tensor) -> Tensor:
        outputs, targets = start.task.outputs(start.model, start.training_batch(ids))
        return kl_div(outputs.log_softmax(1), references[targets], reduction="batchmean")

    both = Pass(start.retain, lambda ids: loss(ids) + alpha * divergence(next(to_forget)))
    pace = Pace(lr, momentum, batch_size)
    return descend(start, [both] * whole(epochs, "epochs"), pace, weight_decay=task.weight_decay)


def class_means(start: Start, held_out: Tensor) -> Tensor:
    """The model's mean probabilities over the held-out samples of each class, in rows; NaN where there are none."""
    outputs, classes = answers(start.task, start.model, held_out, "regun", start.task.test_set)
    said = outputs.softmax(1)
    means = torch.stack([said[classes == one].mean(0) for one in range(said.shape[1])])
    wanted = answers(start.task, start.model, start.forget, "regun")[1]
    missing = sorted({one for one in wanted.tolist() if not bool(means[one].isfinite().all())})
    if missing:
        raise InputError(
            f"forget has samples of class {missing[0]}, of which test_set has none among held_out; add some, or use a "
            "method that needs none, such as scrub."
        )
    return means
