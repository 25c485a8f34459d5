"""The paper's step, to the letter: joint L-FOCI, then a curvature of rank two from finite differences."""

from __future__ import annotations

from torch import nn

from excise.baselines.signature import begin
from excise.inputs import positive
from excise.task import Ids, Task
from excise.training import GradientRecorder, GradientTrace, fit
from excise.unlearn import Unlearner


def paper_step(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    trace: GradientTrace | None = None,
    lr: float = 0.001,
    epsilon: float | None = None,
    delta: float | None = None,
    n_jobs: int | None = None,
) -> nn.Module:
    """Forget one sample after the other as the published method does, slices, curvature and noise included.

    After Mehta, Pal, Singh and Ravi (2022), "Deep Unlearning via Randomized Conditionally Independent Hessians"; see
    ``excise.paper`` for the formula. Nothing is tuned: the paper's 1,000 perturbed copies and full step are taken.

    Args:
        task: Data and objective; its weight decay λ must be above 0.
        model: The trained model.
        forget: Positions in ``train_set``.
        seed: Decides the perturbations, ties, the noise and the order of samples in the epoch below.
        trace: The gradients of the last two epochs of the training, as the paper needs. None to make do without: a
            copy of the model is trained for one more epoch on all samples, and the gradients before and after it take
            their place. That is not what the paper has: the curvature is taken from the end of the training on, along a
            direction that this epoch happens to go.
        lr: Learning rate of that epoch: small, as at the end of a training.
        epsilon: ε of the paper's noise; None for no noise.
        delta: δ of the paper's noise.
        n_jobs: Threads of L-FOCI; None for all cores.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.5)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> at = [{"weight": torch.tensor([[value]])} for value in (0.0, 1.0, -2.0, -1.0)]
    >>> trace = GradientTrace(parameters=(at[0], at[1]), gradients=(at[2], at[3]))  # of curvature 1
    >>> new = paper_step(task, task.model, [2], seed=0, trace=trace)
    >>> round(new.weight.item(), 4)  # 2 + ((3 · 1 - 0.001) / 2 + 0.5)⁻¹ (2 - 3) / 2
    1.7499
    """
    positive(lr, "lr")
    start = begin(task, model, forget, seed)
    unlearner = Unlearner(
        start.task,
        method="paper",
        trace=_one_more_epoch(start.task, lr, seed) if trace is None else trace,
        seed=seed,
        noise_seed=seed,
        n_jobs=n_jobs,
    )
    return unlearner.forget(start.forget.tolist(), epsilon=epsilon, delta=delta).model


def _one_more_epoch(task: Task, lr: float, seed: int) -> GradientTrace:
    """Gradients of the model, and of it after an epoch more."""
    recorder = GradientRecorder(task)
    recorder.end_of_epoch(task.model)
    recorder.end_of_epoch(fit(task, epochs=1, lr=lr, schedule="constant", seed=seed).model)
    return recorder.trace()
