"""Fisher forgetting: noise on every weight, the more the less the retained samples need it."""

from __future__ import annotations

import torch
from torch import nn

from excise._support.checks import positive, require
from excise.baselines.importance import expected_squared_gradients
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.task.ids import Ids
from excise.task.parameters import trained_parameters
from excise.task.task import Task


@baseline(
    "fisher-forgetting",
    reference="Golatkar et al. 2020",
    grid=[{"alpha": 1e-5}, {"alpha": 1e-4}, {"alpha": 3e-4}, {"alpha": 1e-3}],
)
def fisher_forgetting(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    alpha: float = 1e-4,
    floor: float = 1e-8,
    samples: int | None = 500,
) -> nn.Module:
    """Add noise to the weights: w + α F^(-1/4) n, n standard normal and F the retained samples' Fisher information.

    After Golatkar, Achille and Soatto (2020), "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep
    Networks". As there, F is the diagonal of Fisher's matrix with labels as the model expects them. Code in
    circulation uses F^(-1/2), averaged over a unit's weights, and treats biases and the output row of a forgotten class
    apart; this is the paper's formula for all weights.

    Args:
        seed: Decides the noise, and which samples F is taken from.
        alpha: α = (λ σ²)^(1/4) in the paper's symbols; 0 adds no noise.
        floor: The least F of a weight, so that one that no sample needs gets no endless noise. The paper has none; that
            code adds 1e-8 and caps 1/F at 1,000, which is a floor of 1e-3.
        samples: How many retained samples F is taken from (the paper: all); None for all.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data)
    >>> _ = nn.init.zeros_(task.model.weight)
    >>> less, more = (fisher_forgetting(task, task.model, [2], seed=0, alpha=a).weight.item() for a in (0.1, 0.2))
    >>> round(more / less, 4)
    2.0
    """
    require(0 <= alpha < float("inf"), "alpha", alpha, "a non-negative number")
    positive(floor, "floor")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    information = expected_squared_gradients(start.task, start.some_of(start.retain, samples, "samples"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in trained_parameters(start.model).items():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            deviation = alpha * information[name].double().clamp_min(floor) ** -0.25
            weight.add_((deviation * noise.to(weight.device)).to(weight))
    return start.model
