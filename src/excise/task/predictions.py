"""What a model says about samples: outputs, targets and losses as arrays, the raw material of every audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.task.ids import Ids
from excise.task.sharing import rows_over
from excise.task.task import Batch, Task, evaluating
from excise.task.weighting import fitted

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """A model's answers to some samples, one row each."""

    outputs: Floats
    targets: NDArray[Any]
    losses: Floats

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class, as opposed to several labels or a number to predict."""
        return self.outputs.ndim == 2 and self.targets.ndim == 1 and np.issubdtype(self.targets.dtype, np.integer)


def predict(task: Task, model: nn.Module, ids: Ids | None = None, *, dataset: Any = None) -> Predictions:
    """Predictions to samples of the training set, or of another; None for all of it. The model is left as it was.

    Outputs are in double precision, and losses are computed from them so: equal ones would tie in an attack.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]))
    >>> model = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> predict(Task(model, nn.CrossEntropyLoss(reduction="none"), data), model).losses.round(4).tolist()
    [0.6931, 0.6931]
    """
    return predict_all(task, [model], ids, dataset=dataset)[0]


def predict_all(
    task: Task, models: Sequence[nn.Module], ids: Ids | None = None, *, dataset: Any = None
) -> list[Predictions]:
    """What ``predict`` gives for each of several models, with every sample read once for all of them."""
    rows = _asked(task, models, ids, dataset)
    arrays = [one.numpy() for one in rows]
    return [Predictions(*arrays[3 * number : 3 * number + 3]) for number in range(len(models))]


def plain_losses_of(task: Task, model: nn.Module, ids: Ids) -> Floats:
    """The losses that ``predict`` gives, without holding the outputs, of which there may be many for each sample."""
    losses: Floats = _asked(task, [model], ids, None, losses_alone=True)[0].numpy()
    return losses


def _asked(
    task: Task, models: Sequence[nn.Module], ids: Ids | None, dataset: Any, *, losses_alone: bool = False
) -> list[Tensor]:
    """Of each model one after the other: outputs, targets and losses, or the last alone."""
    data = task.samples if dataset is None else dataset
    chosen = torch.arange(len(data)) if ids is None else torch.as_tensor(ids, dtype=torch.long)

    def of_batch(batch: Batch) -> Iterator[Tensor]:
        for model in models:
            output, target = task.outputs(model, batch)
            output = output.double() if output.is_floating_point() else output
            losses = task.plain_losses(output, _double(target)).double()
            target = fitted(task.plain_targets(target), output)
            yield from (part.cpu() for part in ((losses,) if losses_alone else (output, target, losses)))

    with ExitStack() as modes, torch.no_grad():
        for model in models:
            modes.enter_context(evaluating(model))
        size = task.batch_size_within_memory(256)
        return rows_over(task, chosen, lambda batch: list(of_batch(batch)), size, "predictions", dataset=dataset)


def _double(target: torch.Tensor) -> torch.Tensor:
    return target.double() if target.is_floating_point() else target
