"""MSG, masked small gradients: begin anew with the weights on which forgotten and retained samples agree most."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise._support.checks import number, require, whole
from excise.baselines.passes import Pace, Pass, Step, descend, mean_loss
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.errors import InputError
from excise.task.ids import Ids
from excise.task.objective import gradient
from excise.task.parameters import trained_parameters
from excise.task.task import Task

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@baseline(
    "msg",
    reference="NeurIPS 2023 challenge; Cadet et al. 2024",
    grid=[
        {"share": 0.3, "lr": 0.01},
        {"share": 0.3, "lr": 0.05},
        {"share": 0.1, "lr": 0.05},
        {"share": 0.3, "lr": 0.1},
    ],
)
def msg(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    kept: float = 0.1,
    share: float = 0.3,
    epochs: int = 5,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 64,
) -> nn.Module:
    """Draw anew the weights with the smallest |retained gradient - forgotten gradient|, then train on retained samples.

    An entry of the NeurIPS 2023 machine unlearning challenge ("kgltop2"), one of the two best of 18 methods in Cadet,
    Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi (2024), "Deep Unlearn: Benchmarking Machine Unlearning". The share
    is taken in each convolution by itself. The other weights of these layers then learn slowly, and all other
    parameters as usual. The published code knows ``nn.Conv2d`` alone, gives such layers new biases too, and its
    learning rate rises linearly before it falls; here biases stay, and it falls along a cosine. In a model without
    convolutions this is done to the linear layers, except the one that gives the outputs, which the original leaves
    alone as well; a single linear layer is treated itself.

    Args:
        task: Data and objective, with its weight decay.
        seed: Decides which retained samples the gradient is of (as many as there are to forget), the new weights, the
            order of the samples and dropout.
        share: Share of a layer's weights to draw anew; the published code has 0.3.
        kept: What gradients of the layer's other weights are multiplied with; there 0.1.
        epochs: Passes over the retained samples; there 5.
        lr: Learning rate at the start; there 0.001 at the peak, tuned by later users.
        momentum: Momentum of SGD; there 0.9.
        batch_size: Samples in a batch; there 64.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0, 2.0], [1.0, 0.0]]), torch.zeros(2, 1))
    >>> task = Task(nn.Linear(2, 1, bias=False), nn.MSELoss(reduction="none"), data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 1.0)
    >>> new = msg(task, task.model, [0], seed=0, share=0.5, kept=0.0, epochs=1, lr=1e-9)
    >>> [value == 1 for value in new.weight[0].tolist()]  # gradients 6 and 12 against 2 and 0: 4 is the smaller
    [False, True]
    """
    require(0 < share <= 1, "share", share, "above 0 and at most 1")
    number(kept, "kept")
    start = begin(task, model, forget, seed, forgotten=forgotten)
    fresh = smallest_differences(start, share)
    _draw_anew(start, fresh)
    weights = trained_parameters(start.model)
    rates = {name: torch.where(mask, 1.0, kept) for name, mask in fresh.items()}

    def slow_down(_: Step) -> None:
        for name, rate in rates.items():
            gradients = weights[name].grad
            if gradients is not None:
                gradients.mul_(rate)

    return descend(
        start,
        [Pass(start.retain, mean_loss(start))] * whole(epochs, "epochs"),
        Pace(lr, momentum, batch_size),
        weight_decay=task.weight_decay,
        before_step=slow_down,
    )


def smallest_differences(start: Start, share: float) -> dict[str, Tensor]:
    """By the weight's name, where the smallest |differences| of each layer are; of equal ones, the first."""
    some = start.some_of(start.retain, len(start.forget), "forget")
    retained, others = (gradient(start.task, start.model, ids) for ids in (some, start.forget))
    masks = {}
    for name in _layers(start):
        size = (retained[name] / len(some) - others[name] / len(start.forget)).abs().flatten()
        mask = torch.zeros_like(size, dtype=torch.bool)
        mask[size.argsort(stable=True)[: max(1, round(share * len(size)))]] = True
        masks[name] = mask.view_as(retained[name])
    return masks


def _layers(start: Start) -> list[str]:
    """Names of the weights to treat: of convolutions, or else of linear layers but the last."""
    trained = trained_parameters(start.model)
    modules = {f"{name}.weight".lstrip("."): module for name, module in start.model.named_modules()}
    known = {name: module for name, module in modules.items() if name in trained}
    convolutions = [name for name, module in known.items() if isinstance(module, CONVOLUTIONS)]
    linear = [name for name, module in known.items() if isinstance(module, nn.Linear)]
    some = start.task.only(start.retain[:2])  # any will do to see where the outputs come from
    inner = [name for name in linear if not some.ends_in(known[name])]
    chosen = convolutions or inner or linear
    if not chosen:
        raise InputError(
            "model has no trained nn.Conv1d, nn.Conv2d, nn.Conv3d or nn.Linear, whose weights msg could draw anew; use "
            "a method for all kinds of parameters, such as l1_sparse."
        )
    return chosen


def _draw_anew(start: Start, fresh: dict[str, Tensor]) -> None:
    """Normal numbers of variance 2 / fan-out where the masks are true, as in the published code."""
    generator = torch.Generator().manual_seed(start.seed)
    weights = trained_parameters(start.model)
    with torch.no_grad():
        for name, mask in fresh.items():
            drawn = torch.empty(mask.shape, dtype=weights[name].dtype)
            nn.init.kaiming_normal_(drawn, mode="fan_out", nonlinearity="relu", generator=generator)
            weights[name].copy_(torch.where(mask, drawn.to(weights[name]), weights[name]))
