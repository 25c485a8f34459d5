"""A plain training loop that also records what the paper's method needs: the gradients of the last two epochs."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from excise import inputs
from excise.errors import InputError
from excise.objective import gradient
from excise.progress import Bar
from excise.task import Ids, Task, evaluating, positions, trained_parameters

Named = dict[str, Tensor]
Schedule = Literal["cosine", "constant"]
Callback = Callable[[int, nn.Module, float], object]


@dataclass(frozen=True, eq=False)
class GradientTrace:
    """Gradients and parameters at the end of the last two epochs, older first, on the CPU."""

    gradients: tuple[Named, Named]
    """Of the mean loss, without weight decay (which adds λ times the parameters), by parameter name."""
    parameters: tuple[Named, Named]
    """The trainable parameters where these gradients were taken."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and how its training went."""

    model: nn.Module
    """In eval mode."""
    losses: tuple[float, ...]
    """Mean training loss of every epoch; from ``exact_fit``, of every iterate, the start first."""
    seconds: float
    """Time spent training, without callbacks and recorder."""
    trace: GradientTrace | None = None
    """What a recorder kept, if there was one."""


class GradientRecorder:
    """Keeps what the paper's finite differences need: the gradients at the end of the last two epochs.

    ``fit(..., recorder=True)`` uses one; in a training loop of your own, call ``end_of_epoch`` after every epoch, or
    after the last two.

    Args:
        task: The objective.
        ids: The samples that the model is trained on; None for all.

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


def fit(
    task: Task,
    *,
    ids: Ids | None = None,
    epochs: int = 20,
    batch_size: int = 64,
    lr: float = 0.05,
    momentum: float = 0.9,
    schedule: Schedule = "cosine",
    seed: int = 0,
    progress: bool = False,
    recorder: GradientRecorder | bool | None = None,
    callback: Callback | None = None,
) -> Fitted:
    """Train a copy of the task's model by SGD, on all samples or some, with the task's weight decay.

    Training starts from the weights that ``task.model`` has; for a retraining, give the task a fresh model.

    Args:
        task: Model, data and objective; nothing in it is changed.
        ids: Positions in ``train_set`` of the samples to train on; None for all.
        epochs: How often every sample is used.
        batch_size: Samples in a batch. A last batch of one, with which batch normalisation can't be trained, joins
            the one before.
        lr: Learning rate, with ``"cosine"`` at the start.
        momentum: Momentum of SGD.
        schedule: ``"cosine"``, by which the learning rate falls to 0 over the training, or ``"constant"``.
        seed: Decides the order of the samples and dropout. The global random state is neither read nor changed.
        progress: Whether to show a bar, where it takes more than a second.
        recorder: True, or a recorder of your own, to keep the gradients of the last two epochs.
        callback: Called as ``callback(epoch, model, loss)`` after every epoch, from 1 on.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=1.0)
    >>> round(fit(task, epochs=200).model.weight.item(), 3)  # mean target / (1 + λ)
    1.0
    """
    chosen_ids = positions(ids, len(task.train_set))
    epochs, batch_size = inputs.whole(epochs, "epochs"), inputs.whole(batch_size, "batch_size")
    cosine = inputs.choice(schedule, ("cosine", "constant"), "schedule") == "cosine"
    inputs.positive(lr, "lr")
    inputs.require(0 <= momentum < 1, "momentum", momentum, "from 0 to less than 1")
    inputs.require(not recorder or epochs > 1, "epochs", epochs, "2 or more with a recorder, which keeps the last two")
    if recorder is True:
        recorder = GradientRecorder(task, ids=chosen_ids)
    model = copy.deepcopy(task.model)
    weights = list(trained_parameters(model).values())
    sizes = batch_sizes(len(chosen_ids), batch_size)
    steps = epochs * len(sizes)
    optimizer = torch.optim.SGD(weights, lr=lr, momentum=momentum, weight_decay=task.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2 if cosine else 1.0
    )
    generator = torch.Generator().manual_seed(inputs.whole(seed, "seed", 0))
    losses: list[float] = []
    seconds = 0.0
    with Bar(enabled=progress) as bar:
        bar.start("training", steps)
        for epoch in range(1, epochs + 1):
            began, total = time.perf_counter(), 0.0
            model.train()
            with own_randomness(generator):
                order = chosen_ids[torch.randperm(len(chosen_ids), generator=generator)]
                for chosen in order.split(sizes):
                    loss = task.losses(model, task.batch(chosen)).mean()
                    total += float(loss.detach()) * len(chosen)
                    if not math.isfinite(total):
                        break
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    scheduler.step()
                    bar.advance(1)
            losses.append(total / len(chosen_ids))
            if not (math.isfinite(total) and all(bool(weight.isfinite().all()) for weight in weights)):
                raise InputError(
                    f"the training diverged in epoch {epoch} of {epochs} with lr={lr} (mean loss {losses[-1]}); "
                    "use a smaller lr, or check train_set for values that are not finite."
                )
            seconds += time.perf_counter() - began
            if recorder and epoch > epochs - 2:
                recorder.end_of_epoch(model)
            if callback is not None:
                callback(epoch, model, losses[-1])
    return Fitted(model.eval(), tuple(losses), seconds, recorder.trace() if recorder else None)


def batch_sizes(count: int, size: int) -> list[int]:
    """Sizes of the batches of an epoch; a single sample left over joins the last whole batch."""
    sizes = [size] * (count // size)
    left = count % size
    if left == 1 and sizes:
        sizes[-1] += 1
    elif left:
        sizes.append(left)
    return sizes


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Dropout and the like draw from the generator inside; outside, the global random state is as before."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
