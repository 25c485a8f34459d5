"""What the paper's method needs of a training: the gradients at the end of its last two epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from excise.errors import InputError
from excise.task.ids import Ids, positions
from excise.task.objective import gradient
from excise.task.parameters import trained_parameters
from excise.task.task import Task, evaluating

Named = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class GradientTrace:
    """Gradients and parameters at the end of the last two epochs, older first, on the CPU."""

    gradients: tuple[Named, Named]
    """Of the mean loss, without weight decay (which adds λ times the parameters), by parameter name."""
    parameters: tuple[Named, Named]
    """The trainable parameters where these gradients were taken."""


class GradientRecorder:
    """Keeps what the paper's finite differences need: the gradients at the end of the last two epochs.

    ``fit(..., recorder=True)`` uses one; in a training loop of your own, call ``end_of_epoch`` after every epoch, or
    after the last two.

    Args:
        task: The objective.
        ids: The samples that the model is trained on; None for all.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> recorder = GradientRecorder(task)
    >>> for value in (0.0, 5.0):
    ...     _ = nn.init.constant_(task.model.weight, value)
    ...     recorder.end_of_epoch(task.model)
    >>> [gradient["weight"].item() for gradient in recorder.trace().gradients]  # weight - mean target
    [-2.0, 3.0]
    """

    def __init__(self, task: Task, *, ids: Ids | None = None) -> None:
        self._task, self._ids = task, positions(ids, len(task.train_set))
        self._gradients: tuple[Named, ...] = ()
        self._parameters: tuple[Named, ...] = ()

    def end_of_epoch(self, model: nn.Module) -> None:
        """Compute the gradient of the mean loss, in eval mode, and keep it; the model is left as it was."""
        weights = trained_parameters(model)
        task = replace(self._task, model=model)  # batches go to the device of this model
        with evaluating(model):
            sums = gradient(task, model, self._ids)
        mean = {name: (total / len(self._ids)).cpu() for name, total in sums.items()}
        values = {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}
        self._gradients = (*self._gradients, mean)[-2:]
        self._parameters = (*self._parameters, values)[-2:]

    def trace(self) -> GradientTrace:
        """What was kept, once two epochs were seen."""
        if len(self._gradients) < 2:
            raise InputError(
                f"the recorder has seen {len(self._gradients)} of the two epochs it needs; "
                "call end_of_epoch(model) at the end of the last two."
            )
        return GradientTrace(
            gradients=(self._gradients[0], self._gradients[1]), parameters=(self._parameters[0], self._parameters[1])
        )

    def state_dict(self) -> dict[str, list[Named]]:
        """What was kept, for a checkpoint; ``torch.load(..., weights_only=True)`` reads it."""
        return {"gradients": list(self._gradients), "parameters": list(self._parameters)}

    def load_state_dict(self, state: Mapping[str, Sequence[Named]]) -> None:
        """Go on from a ``state_dict``, which must be of the same model."""
        gradients, parameters = tuple(state.get("gradients", ())), tuple(state.get("parameters", ()))
        if set(state) != {"gradients", "parameters"} or len(gradients) != len(parameters) or len(gradients) > 2:
            raise InputError(
                "state must have 'gradients' and 'parameters' of as many epochs, two at most, not "
                f"{ {name: len(value) for name, value in state.items()} }; pass a recorder's state_dict()."
            )
        shapes = {name: weight.shape for name, weight in trained_parameters(self._task.model).items()}
        if any({name: tensor.shape for name, tensor in kept.items()} != shapes for kept in (*gradients, *parameters)):
            raise InputError("state is of another model: its parameters differ in name or shape from the task's.")
        self._gradients, self._parameters = gradients, parameters
