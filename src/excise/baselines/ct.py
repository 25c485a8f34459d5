"""CT, convolution transpose: turn every kernel over its diagonal, and let fine-tuning repair it."""

from __future__ import annotations

import torch
from torch import nn

from excise.baselines.fine_tune import fine_tune
from excise.baselines.registry import baseline
from excise.baselines.start import begin
from excise.errors import InputError
from excise.task.ids import Ids
from excise.task.task import Task


@baseline(
    "ct",
    reference="NeurIPS 2023 challenge; Cadet et al. 2024",
    grid=[{"epochs": 3, "lr": 0.05}, {"epochs": 5, "lr": 0.1}, {"epochs": 10, "lr": 0.05}, {"epochs": 10, "lr": 0.1}],
)
def ct(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    momentum: float = 0.9,
    epochs: int = 3,
    lr: float = 0.01,
    batch_size: int = 64,
) -> nn.Module:
    """Swap height and width of all convolution kernels, then train on the retained samples.

    An entry of the NeurIPS 2023 machine unlearning challenge ("kgltop5"), one of the two best of 18 methods in Cadet,
    Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), "Deep Unlearn: Benchmarking Machine Unlearning". It never
    looks at the samples to forget. Kernels that are not square would need other strides and paddings, and those that
    are not trained could not be repaired; both stay. A model whose ``nn.Conv2d`` layers have no other kernels larger
    than 1 × 1 is refused: there is no image that turns.

    Args:
        task: Data and objective, with its weight decay.
        model: The trained model, with convolutions.
        seed: Decides the order of the samples and dropout.
        epochs: Passes over the retained samples; the published code has 3.
        lr: Learning rate at the start; there 0.001, tuned by later users.
        momentum: Momentum of SGD; there 0.9.
        batch_size: Samples in a batch; there 64.

    >>> data = torch.utils.data.TensorDataset(torch.zeros(3, 1, 2, 2), torch.zeros(3, 1, 1, 1))
    >>> task = Task(nn.Conv2d(1, 1, 2, bias=False), nn.MSELoss(reduction="none"), data, weight_decay=0.0)
    >>> _ = task.model.weight.data.copy_(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    >>> ct(task, task.model, [2], seed=0).weight.tolist()  # black images teach nothing
    [[[[1.0, 3.0], [2.0, 4.0]]]]
    """
    start = begin(task, model, forget, seed, forgotten=forgotten)
    transpose_kernels(start.model)
    return fine_tune(
        start.task,
        start.model,
        forget,
        seed=seed,
        forgotten=forgotten,
        epochs=epochs,
        lr=lr,
        momentum=momentum,
        batch_size=batch_size,
    )


def transpose_kernels(model: nn.Module) -> None:
    """Swap axes 2 and 3 of the square kernels, in place."""
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.weight.requires_grad]
    square = [layer for layer in layers if layer.kernel_size[0] == layer.kernel_size[1] > 1]
    if not square:
        sizes = ", ".join(sorted({"x".join(map(str, layer.kernel_size)) for layer in layers}))
        has = f"kernels of {sizes} alone" if sizes else "no trained nn.Conv2d"
        raise InputError(
            f"model has {has}, and ct needs square kernels larger than 1x1 to transpose; use msg, which has a form for "
            "linear layers, or fine_tune."
        )
    with torch.no_grad():
        for layer in square:
            layer.weight.copy_(layer.weight.swapaxes(2, 3).clone())
