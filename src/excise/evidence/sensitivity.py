"""Which inputs a model's answer hangs on: Chatterjee's ξ of every pixel and the loss (remark 2 of the paper).

Copies of the sample are perturbed at random; a pixel whose noise tells the loss has a high ξ. The map shows where the
model looks, and, before and after a deletion, whether it still recognises the sample by the same strokes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from excise._support.checks import whole
from excise.errors import InputError
from excise.slices.activations import GaussianNoise, Perturbation
from excise.statistics.dependence import ranks
from excise.task.batches import inputs_of, real_values, repeated, with_inputs, with_real_values
from excise.task.ids import positions
from excise.task.task import Task, evaluating


def sensitivity(
    task: Task,
    model: nn.Module,
    sample: int,
    *,
    copies: int = 1000,
    perturbation: Perturbation | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """ξ of each input value of a training sample and the loss, in the shape of the input; 0 for inputs without effect.

    Args:
        task: Where the sample comes from.
        model: The model to explain.
        sample: Position in ``train_set``.
        copies: Perturbed copies. An input without any effect has a ξ of about ± 0.6 / √copies.
        perturbation: How to perturb; None for Gaussian noise.
        seed: For the noise.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]))
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0]]))  # only the first input counts
    >>> task = Task(model, lambda said, truth: said[:, 0] - truth, data)
    >>> sensitivity(task, model, 0, seed=0).round(1).tolist()
    [1.0, 0.0]
    """
    whole(copies, "copies", 2)
    try:
        batch = task.batch(positions([sample], len(task.train_set)))
    except InputError as error:
        raise InputError(f"sample: {error}") from None
    plain = real_values(inputs_of(batch))
    if plain is None:
        raise InputError("sensitivity needs real-valued inputs, one tensor a sample; tokens have no pixels.")
    generator = torch.Generator().manual_seed(whole(seed, "seed", 0))
    perturb = perturbation or GaussianNoise()
    noisy: list[NDArray[np.float32]] = []
    losses: list[NDArray[np.float64]] = []
    with evaluating(model), torch.no_grad():
        size = task.batch_size_within_memory(256)
        for low in range(0, copies, size):
            count = min(size, copies - low)
            values, many = perturb(plain, count, generator), repeated(batch, count)
            outputs, targets = task.outputs(model, with_inputs(many, with_real_values(inputs_of(many), values)))
            losses.append(task.sample_losses(outputs.double(), targets).cpu().numpy())
            noisy.append(values.flatten(1).cpu().numpy())
    found = _xi_of_columns(np.concatenate(noisy), np.concatenate(losses))
    return found.reshape(tuple(plain.shape[1:]))


def _xi_of_columns(columns: NDArray[np.float32], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """``xi`` of every column, without ties in a column; 0 where y or the column is constant."""
    above, below = ranks(y)
    n = len(y)
    spread = 2 * float(np.sum(below * (n - below), dtype=np.float64))
    if spread == 0:
        return np.zeros(columns.shape[1])
    paths = above[np.argsort(columns, axis=0, kind="stable")]
    found: NDArray[np.float64] = 1 - n * np.abs(np.diff(paths, axis=0)).sum(axis=0) / spread
    return np.where(columns.max(axis=0) > columns.min(axis=0), found, 0.0)
