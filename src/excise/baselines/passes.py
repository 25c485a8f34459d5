"""Passes over samples, each down a loss of its own: what the methods that train have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from excise.baselines.start import Start
from excise.errors import InputError
from excise.task.parameters import trained_parameters
from excise.training import loop
from excise.training.loop import Loss, Pace, Pass, Step

__all__ = ["Loss", "Pace", "Pass", "Step", "batches_for_ever", "descend", "mean_loss"]


def mean_loss(start: Start) -> Loss:
    """The mean loss of a batch, as in training."""
    return lambda ids: start.task.losses(start.model, start.training_batch(ids)).mean()


def batches_for_ever(ids: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Batches of the samples, in a new order every time round."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from ids[torch.randperm(len(ids), generator=generator)].split(size)


def descend(
    start: Start,
    passes: Sequence[Pass],
    pace: Pace,
    *,
    weight_decay: float,
    moves: Mapping[str, Tensor] | None = None,
    before_step: Callable[[Step], object] | None = None,
    done: Callable[[], bool] | None = None,
) -> nn.Module:
    """Train the model of the start, in place.

    The learning rate falls to 0 along a cosine over all passes, as in ``fit``.

    Args:
        start: With the model.
        passes: What to go through, one after the other.
        pace: Learning rate, momentum and batch size.
        weight_decay: λ.
        moves: If there is one, only the weights where it is true are trained, and no ``before_step`` is asked.
        before_step: May change the gradients, to which weight decay is added later.
        done: Asked between passes whether to leave out the others.
    """
    weights = trained_parameters(start.model)

    def only_the_moves(_: Step) -> None:
        """Weight decay belongs to the gradient before the mask, or it would move the others too."""
        for name, weight in weights.items():
            if moves is not None and weight.grad is not None:
                weight.grad.add_(weight.detach(), alpha=weight_decay).masked_fill_(~moves[name], 0.0)

    optimizer = pace.sgd(weights.values(), weight_decay=weight_decay if moves is None else 0.0)
    descent = loop.descend(
        optimizer,
        passes,
        batch_size=pace.batch_size,
        share=loop.cosine,
        generator=torch.Generator().manual_seed(start.seed),
        before_step=before_step if moves is None else only_the_moves,
    )
    for place, _ in enumerate(descent, 1):
        if done is not None and place < len(passes) and done():
            break
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        raise InputError(f"the weights diverged with lr={pace.lr}; use a smaller lr or fewer epochs.")
    return start.model.eval()
