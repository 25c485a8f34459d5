"""The paper's step, to the letter: joint L-FOCI, then a curvature of rank two from finite differences."""

from __future__ import annotations

from torch import nn

from excise._support.checks import positive
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.privacy.mechanism import Privacy
from excise.task.ids import Ids
from excise.task.task import Task
from excise.training.loop import fit
from excise.training.trace import GradientRecorder, GradientTrace
from excise.unlearning.paper import PaperStep
from excise.unlearning.unlearner import Unlearner


@baseline("paper-step", reference="Mehta et al. 2022")
def paper_step(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    trace: GradientTrace | None = None,
    lr: float = 0.001,
    epsilon: float | None = None,
    delta: float | None = None,
    n_jobs: int | None = None,
) -> nn.Module:
    """Forget one sample after the other as the published method does, slices, curvature and noise included.

    After Mehta, Pal, Singh and Ravi (2022), "Deep Unlearning via Randomized Conditionally Independent Hessians"; see
    ``excise.unlearning.paper`` for the formula. Nothing is tuned: the paper's 1,000 perturbed copies and full step are
    taken.

    Args:
        task: Data and objective; its weight decay λ must be above 0.
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
    start = begin(task, model, forget, seed, forgotten=forgotten)
    unlearner = Unlearner(
        start.task,
        PaperStep(_one_more_epoch(start, lr) if trace is None else trace),
        privacy=Privacy(noise_seed=seed, repeatable=True),
        forgotten=start.forgotten,
        seed=seed,
        n_jobs=n_jobs,
    )
    return unlearner.forget(start.forget.tolist(), epsilon=epsilon, delta=delta).model


def _one_more_epoch(start: Start, lr: float) -> GradientTrace:
    """Gradients of the model, and of it after an epoch more."""
    recorder = GradientRecorder(start.task, ids=start.present)
    recorder.end_of_epoch(start.model)
    after = fit(start.task, ids=start.present, epochs=1, lr=lr, schedule="constant", seed=start.seed).model
    recorder.end_of_epoch(after)
    return recorder.trace()
