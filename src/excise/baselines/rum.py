"""RUM: treat samples by how much they were memorised: the least not at all, the most by SalUn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.checks import choice
from excise.baselines.classes import answers
from excise.baselines.fine_tune import fine_tune
from excise.baselines.held_out import held_out_positions
from excise.baselines.registry import baseline
from excise.baselines.salun import salun
from excise.baselines.start import Start, begin
from excise.task.ids import Ids
from excise.task.task import Task
from excise.training.loop import fit


@baseline(
    "rum",
    reference="Zhao et al. 2024",
    grid=[
        {"epochs": 3, "lr": 0.01},
        {"epochs": 3, "lr": 0.05},
        {"epochs": 5, "lr": 0.05},
        {"proxy": "held-out", "epochs": 3, "lr": 0.01},
    ],
)
def rum(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    proxy: str = "confidence",
    share: float = 0.5,
    epochs: int = 3,
    held_out: Ids | None = None,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Leave the least memorised third alone, fine-tune without the middle one, then forget the last by SalUn.

    After Zhao, Kurmanji, Bărbulescu, Triantafillou and Triantafillou (2024), "What makes unlearning hard and what to do
    about it", with the three methods of its published code. As there, samples count as retained until their turn: the
    most memorised are trained on once more while the middle third is forgotten. How much a sample was memorised is how
    much likelier its label is to models that were trained with it than without, which takes many models. Here a proxy
    ranks the samples instead, as in Zhao and Triantafillou (2024), "Scalability of memorization-based machine
    unlearning". The paper makes requests of three groups with low, medium and high scores; here any request is cut into
    thirds by rank, even if all its samples are alike. What does not divide by three goes to the higher groups, so that
    a single sample goes to SalUn.

    Args:
        task: Data and objective; every sample has one class.
        seed: Decides labels, order of the samples and dropout.
        proxy: ``"confidence"``, by which samples are the more memorised the less likely their label is to the model;
            or ``"held-out"``: how far the model's answer moves, as a symmetric divergence, when a copy is trained
            further on held-out data. **The second reads held-out data**: figures on the same samples of ``test_set``
            are no longer those of unseen data, although the copy is thrown away.
        held_out: Positions in ``test_set`` for this; None for all.
        share: Share of the weights that SalUn may move.
        epochs: Passes of each stage, and of the copy on held-out data.
        lr: Learning rate of each at the start.
        momentum: Momentum of SGD.
        batch_size: Samples in a batch.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([0, 0, 0, 0]))
    >>> task = Task(nn.Linear(1, 2, bias=False), nn.CrossEntropyLoss(reduction="none"), data)
    >>> _ = task.model.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))  # surer of larger inputs
    >>> new = rum(task, task.model, [0], seed=0)
    >>> torch.equal(new.weight, salun(task, task.model, [0], seed=0).weight)
    True
    """
    choice(proxy, tuple(PROXIES), "proxy")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    pace: dict[str, Any] = {"epochs": epochs, "lr": lr, "momentum": momentum, "batch_size": batch_size}
    scores = PROXIES[proxy](start, held_out, pace)
    low, medium, high = thirds(start.forget, scores)
    new, gone = start.model, torch.cat([start.forgotten, low])
    if len(medium):
        new = fine_tune(start.task, new, medium, seed=seed, forgotten=gone, **pace)
    return salun(start.task, new, high, seed=seed, forgotten=torch.cat([gone, medium]), share=share, **pace)


def thirds(ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The samples of low, medium and high scores; what is left over goes to the higher groups.

    >>> thirds(torch.tensor([7, 8, 9]), torch.tensor([0.5, 0.1, 0.9]))
    (tensor([8]), tensor([7]), tensor([9]))
    >>> [len(one) for one in thirds(torch.arange(5), torch.arange(5))]
    [1, 2, 2]
    """
    ranked = ids[scores.argsort(stable=True).cpu()]
    low, high = len(ids) // 3, (len(ids) + 2) // 3
    return ranked[:low], ranked[low : len(ids) - high], ranked[len(ids) - high :]


def by_confidence(start: Start, *_: object) -> Tensor:
    """1 - the probability of the sample's label."""
    outputs, classes = answers(start.task, start.model, start.forget, "rum")
    return 1 - outputs.softmax(1).gather(1, classes[:, None])[:, 0]


def by_held_out_training(start: Start, held_out: Ids | None, pace: dict[str, Any]) -> Tensor:
    """½ (KL(before ‖ after) + KL(after ‖ before)) of training on held-out samples."""
    ids = held_out_positions(start.task, held_out, "rum with proxy='held-out'")
    other = replace(start.task, train_set=start.task.test_set, plain_set=None, keys=None, retrain=None)
    trained = fit(other, ids=ids, seed=start.seed, **pace).model
    before, after = (
        answers(start.task, model, start.forget, "rum")[0].log_softmax(1) for model in (start.model, trained)
    )
    return ((before.exp() - after.exp()) * (before - after)).sum(1) / 2


PROXIES: dict[str, Callable[..., Tensor]] = {"confidence": by_confidence, "held-out": by_held_out_training}
