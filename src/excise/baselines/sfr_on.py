"""SFR-on: short salient steps away from the samples to forget, each repaired by several on the retained ones."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from excise._support.checks import number, positive, whole
from excise.baselines.importance import squared_gradients
from excise.baselines.passes import Pace, Pass, Step, batches_for_ever, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.task.ids import Ids
from excise.task.parameters import Tensors, trained_parameters
from excise.task.task import Task
from excise.training.loop import cosine

TINY = 1e-15  # keeps quotients finite, as in the published code


@baseline(
    "sfr-on",
    reference="Huang et al. 2024",
    grid=[
        {"alpha": 0.1, "lr": 0.01},
        {"alpha": 1.0, "lr": 0.01},
        {"alpha": 5.0, "lr": 0.01},
        {"alpha": 25.0, "lr": 0.01},
    ],
)
def sfr_on(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 1.0,
    exponent: float = 0.5,
    threshold: float = 1.0,
    most: float = 7.0,
    every: int = 5,
    samples: int | None = 1000,
    epochs: int = 3,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Climb the loss of the samples to forget, with the weights that matter more to them, and repair on retained ones.

    After Huang, Cheng, Zheng, Wang, He, Li and Huang (2024), "Unified Gradient-Based Machine Unlearning with Remain
    Geometry Enhancement", in its form for classification. A fast step raises Σ ε ℓ of a batch to forget, and some slow
    ones on retained samples follow. The coefficients ε are proportional to ℓ^-λ and sum up to 1: a sample that is
    nearly forgotten counts less. Only weights whose Fisher information of the samples to forget is at least γ times
    that of retained ones get this gradient, and its norm is cut off. The slow steps stand for the inverse Hessian of
    the retained samples, in whose geometry the paper forgets. As in the published settings, the weights after them are
    taken over as they are (β = 1). Fisher information is a mean of squared gradients sample by sample, where the
    published code squares those of batches; the learning rate's cosine counts steps of both kinds.

    Args:
        task: Data and objective, with its weight decay.
        seed: Decides which retained samples the information is of, the order of the samples and dropout.
        alpha: α, by which the steps up are multiplied; falls to 0 along a cosine. The published code has 25, for
            ResNet-18 and a tenth of all samples.
        exponent: λ; there 0.5. With 0 all samples count alike.
        threshold: γ; there 1.
        most: The largest norm of a gradient upwards; there 7.
        every: Slow steps for each fast one; there 5.
        samples: How many retained samples the information is of (the paper: all); None for all.
        epochs: Passes over the retained samples; there 1,500 steps, about 4 passes.
        lr: Learning rate at the start; there 0.01.
        momentum: Momentum of SGD; there 0.9.
        batch_size: Samples in a batch, of either kind.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> new = sfr_on(task, task.model, [2], seed=0, epochs=1, lr=0.1, momentum=0.0)
    >>> round(new.weight.item(), 3)  # 2 + 0.1 (2 - 3), then with half the rate - 0.05 (1.9 - 1.5)
    1.88
    """
    for name, value in {"alpha": alpha, "exponent": exponent, "threshold": threshold}.items():
        number(value, name)
    positive(most, "most")
    whole(every, "every")
    start, pace = begin(task, model, forget, seed, forgotten=forgotten), Pace(lr, momentum, batch_size)
    salient = _salient(start, threshold, start.some_of(start.retain, samples, "samples"))
    weights = trained_parameters(start.model)

    def away(share: float, ids: Tensor) -> Tensor:
        losses = start.task.losses(start.model, start.training_batch(ids))
        return -alpha * share * (adaptive_coefficients(losses, exponent) * losses).sum()

    def only_salient(step: Step) -> None:
        if step.number % (every + 1) == 0:  # a fast step: each round has one, and then so many slow ones
            for name, weight in weights.items():
                if weight.grad is not None:
                    weight.grad.mul_(salient[name])
            nn.utils.clip_grad_norm_(weights.values(), most)

    to_forget, near = batches_for_ever(start.forget, batch_size, seed), mean_loss(start)
    rounds = _rounds(start, whole(epochs, "epochs"), every * batch_size)
    passes = []
    for place, ids in enumerate(rounds):
        passes += [Pass(next(to_forget), partial(away, cosine(place, len(rounds)))), Pass(ids, near)]
    return descend(start, passes, pace, weight_decay=task.weight_decay, before_step=only_salient)


def adaptive_coefficients(losses: Tensor, exponent: float) -> Tensor:
    """ε of each sample: ℓ^-λ as a share of the sum.

    >>> adaptive_coefficients(torch.tensor([1.0, 4.0]), 0.5)  # 1 and 1/2
    tensor([0.6667, 0.3333])
    """
    inverse = 1 / (losses.detach() ** exponent + TINY)
    return inverse / inverse.sum()


def salient_weights(to_forget: Tensors, to_retain: Tensors, threshold: float) -> dict[str, Tensor]:
    """Where the information of the samples to forget is at least γ times that of the retained ones.

    >>> salient_weights({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([2.0, 2.0])}, 1.0)
    {'w': tensor([False,  True])}
    """
    return {name: (one + TINY) / (to_retain[name] + TINY) >= threshold for name, one in to_forget.items()}


def _salient(start: Start, threshold: float, retained: Tensor) -> dict[str, Tensor]:
    of_forget, of_retained = (squared_gradients(start.task, ids) for ids in (start.forget, retained))
    return salient_weights(of_forget, of_retained, threshold)


def _rounds(start: Start, epochs: int, size: int) -> list[Tensor]:
    """The retained samples of all epochs in random order, cut into rounds; only the last may be shorter."""
    generator = torch.Generator().manual_seed(start.seed)
    orders = [start.retain[torch.randperm(len(start.retain), generator=generator)] for _ in range(epochs)]
    return list(torch.cat(orders).split(size))
