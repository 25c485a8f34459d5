"""The one training loop: passes over samples, each batch a step of an optimiser, and a hook before every step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from excise import processes
from excise._support import checks
from excise._support.progress import Bar
from excise._support.randomness import RandomStream
from excise.errors import InputError
from excise.task.ids import Ids, positions
from excise.task.parameters import trained_parameters
from excise.task.task import Task
from excise.training.sgd import SGD, Optimizer
from excise.training.trace import GradientRecorder, GradientTrace

Schedule = Literal["cosine", "constant"]
Callback = Callable[[int, nn.Module, float], object]
Loss = Callable[[Tensor], Tensor]
"""The loss of a batch, by the ids of its samples."""
Share = Callable[[int, int], float]
"""The share of the learning rate that a step has, by its number from 0 on and how many there are."""


@dataclass(frozen=True)
class Pass:
    """Once through the samples, in random order: every batch a step down its loss."""

    ids: Tensor
    loss: Loss
    ahead: Callable[..., AbstractContextManager[None]] | None = None
    """Given the ids of all batches and a ``seed``, a context inside of which they have been read ahead."""
    shared: bool = False
    """Whether, of several processes, each one's loss is its part of the batch's, as of ``part_of_mean``: then they add
    up their gradients. Else each goes through all by itself."""


@dataclass(frozen=True)
class Pace:
    """How fast SGD goes."""

    lr: float
    """At the start, where it falls."""
    momentum: float
    batch_size: int

    def __post_init__(self) -> None:
        checks.positive(self.lr, "lr")
        checks.require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to less than 1")
        checks.whole(self.batch_size, "batch_size")

    def sgd(self, weights: Iterable[Tensor], *, weight_decay: float = 0.0) -> SGD:
        """The optimiser of these weights."""
        return SGD(weights, lr=self.lr, momentum=self.momentum, weight_decay=weight_decay)


@dataclass(frozen=True)
class Step:
    """A step that is about to be taken: the gradients are there, the weights have not moved yet."""

    number: int
    """From 0 on, over all passes."""
    samples: int
    """In its batch."""
    loss: float


def descend(
    optimizer: Optimizer,
    passes: Sequence[Pass],
    *,
    batch_size: int,
    share: Share,
    generator: torch.Generator,
    training: bool = True,
    before_step: Callable[[Step], object] | None = None,
) -> Iterator[float]:
    """Go through the passes, and give the mean loss after each.

    Args:
        optimizer: Of the weights to move; its learning rates are those at a share of 1.
        passes: What to go through, one after the other.
        batch_size: Samples in a batch.
        share: How the learning rate changes from step to step, such as ``cosine``.
        generator: Decides the order of the samples, and dropout.
        training: Whether the model is in training mode: then a last batch of one sample joins the one before, since
            batch normalisation can't be trained with it, and dropout draws from the generator. In eval mode neither
            matters, and the generator's numbers go to the order alone.
        before_step: May change the gradients; an error that it raises ends the descent.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    sizes = [batch_sizes(len(one.ids), batch_size, join=training) for one in passes]
    number, steps = 0, sum(map(len, sizes))
    for one, batches in zip(passes, sizes, strict=True):
        total = 0.0
        stream = _stream(generator) if training else None
        order = one.ids[torch.randperm(len(one.ids), generator=generator)]
        parts = order.split(batches)
        with nullcontext() if one.ahead is None else one.ahead(parts, seed=generator.initial_seed() % 2**62 + number):
            for ids in parts:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * share(number, steps)
                with nullcontext() if stream is None else stream.turn():
                    loss = _differentiate(optimizer, one, ids)
                    if before_step is not None:
                        before_step(Step(number, len(ids), loss))
                    optimizer.step()
                total += loss * len(ids)
                number += 1
        optimizer.zero_grad()  # gradients would take up as much memory as the model
        yield total / len(one.ids)


def _differentiate(optimizer: Optimizer, one: Pass, ids: Tensor) -> float:
    """Put the gradients of a batch's loss where the optimiser looks for them."""
    optimizer.zero_grad()
    with torch.enable_grad():
        value = one.loss(ids)
    value.backward()
    return added_up(optimizer, value.detach()) if one.shared else float(value.detach())


def added_up(optimizer: Optimizer, loss: Tensor) -> float:
    """Add up loss and gradients of all processes; a weight that none of them uses has no gradient, as ever."""
    if processes.count() == 1:
        return float(loss)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    used = torch.tensor([float(weight.grad is not None) for weight in weights])
    *sums, users, value = processes.total([*gradients, used, loss.reshape(1)], "gradients of a batch", double=False)
    for weight, gradient, sum_, has_users in zip(weights, gradients, sums, users.tolist(), strict=True):
        weight.grad = gradient.copy_(sum_) if has_users else None
    return float(value)


def cosine(step: int, steps: int) -> float:
    """The share of the learning rate that falls from 1 to 0 along a cosine.

    >>> [round(cosine(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * step / steps)) / 2


def constant(step: int, steps: int) -> float:  # noqa: ARG001 - all shares are asked alike
    """The whole learning rate at every step."""
    return 1.0


SHARES: dict[str, Share] = {"cosine": cosine, "constant": constant}


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
    pace = Pace(lr, momentum, batch_size)
    share = SHARES[checks.choice(schedule, ("cosine", "constant"), "schedule")]
    generator = torch.Generator().manual_seed(checks.whole(seed, "seed", 0))
    epochs = checks.whole(epochs, "epochs")
    checks.require(not recorder or epochs > 1, "epochs", epochs, "2 or more with a recorder, which keeps the last two")
    chosen = positions(ids, len(task.train_set))
    if isinstance(recorder, bool):
        recorder = GradientRecorder(task, ids=chosen) if recorder else None
    with Bar(enabled=progress) as bar:
        return _train(task, chosen, epochs, pace, share, generator, recorder, callback, bar)


def _train(
    task: Task,
    ids: Tensor,
    epochs: int,
    pace: Pace,
    share: Share,
    generator: torch.Generator,
    recorder: GradientRecorder | None,
    callback: Callback | None,
    bar: Bar,
) -> Fitted:
    """What ``fit`` does once its arguments are checked."""
    model = copy.deepcopy(task.model).train()
    weights = list(trained_parameters(model).values())
    optimizer = pace.sgd(weights, weight_decay=task.weight_decay)
    losses: list[float] = []

    def watch(step: Step) -> None:
        _require_finite(step.loss, [], f"epoch {len(losses) + 1} of {epochs}", pace)
        bar.advance(1)

    each = len(ids) / task.mass(ids)  # of these samples, where classes have weights
    ahead = partial(task.reading_ahead, dataset=task.train_set)
    passes = [
        Pass(ids, lambda some: each * task.losses(model, task.batch(some, task.train_set)).mean(), ahead)
    ] * epochs
    bar.start("training", epochs * len(batch_sizes(len(ids), pace.batch_size)))
    seconds, began = 0.0, time.perf_counter()
    for loss in descend(
        optimizer, passes, batch_size=pace.batch_size, share=share, generator=generator, before_step=watch
    ):
        losses.append(loss)
        _require_finite(loss, weights, f"epoch {len(losses)} of {epochs}", pace)
        seconds += time.perf_counter() - began
        if recorder is not None and len(losses) > epochs - 2:
            recorder.end_of_epoch(model)
        if callback is not None:
            callback(len(losses), model, loss)
        model.train()  # a callback may look at it in eval mode
        began = time.perf_counter()
    return Fitted(model.eval(), tuple(losses), seconds, None if recorder is None else recorder.trace())


def _require_finite(loss: float, weights: Sequence[Tensor], when: str, pace: Pace) -> None:
    if not (math.isfinite(loss) and all(bool(weight.isfinite().all()) for weight in weights)):
        raise InputError(
            f"the training diverged in {when} with lr={pace.lr} (mean loss {loss}); "
            "use a smaller lr, or check train_set for values that are not finite."
        )


def batch_sizes(count: int, size: int, *, join: bool = True) -> list[int]:
    """Sizes of the batches of an epoch; with ``join``, a single sample left over joins the last whole batch.

    >>> batch_sizes(9, 4), batch_sizes(9, 4, join=False)
    ([4, 5], [4, 4, 1])
    """
    whole, left = divmod(count, int(size))
    sizes = [int(size)] * whole
    if left == 1 and sizes and join:
        sizes[-1] += 1
    elif left:
        sizes.append(left)
    return sizes


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Dropout and the like draw from the generator inside; outside, the global random state is as before."""
    with _stream(generator).turn():
        yield


def _stream(generator: torch.Generator) -> RandomStream:
    return RandomStream(int(torch.randint(2**62, (), generator=generator)))
