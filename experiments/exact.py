"""Exact forgetting of convex models: ``python -m experiments.exact``, leave-one-out of the 100 hardest samples.

A linear layer in double precision, forgotten by the default method. The truth is the minimum without the sample, found
by steps that are taken to the end; how far it can itself be off is bounded by its gradient in numpy and the weight
decay. Printed are the share of the distance to it that is left, the certificate as a multiple of what is left (of those
samples of which more than rounding is), and how many certificates are below the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise import Exact, Task, Unlearner
from excise.datasets.files import default_folder
from excise.datasets.mnist import load_mnist
from excise.privacy.head_objective import set_trained_weights, trained_weights
from excise.task.objective import losses_on
from excise.unlearning import Workspace
from excise.unlearning.exact import newton

DECAY, REMOVED = 1e-3, 100
ROUNDING = 1e-8  # share of the distance, below which digits are lost


def breast_cancer() -> Task:
    return _classes(*load_breast_cancer(return_X_y=True), classes=2)


def digits() -> Task:
    return _classes(*load_digits(return_X_y=True), classes=10)


def mnist() -> Task:
    images, labels = load_mnist(default_folder() / "mnist")
    return _classes(images[:4000], labels[:4000], classes=10)


def diabetes() -> Task:
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    numbers = torch.tensor(StandardScaler().fit_transform(targets[:, None]))
    return _trained(nn.Linear(inputs.shape[1], 1), nn.MSELoss(), StandardScaler().fit_transform(inputs), numbers)


SETS: dict[str, Callable[[], Task]] = {
    "breast cancer": breast_cancer,
    "digits": digits,
    "diabetes": diabetes,
    "MNIST, 4,000 images": mnist,
}


def _classes(inputs: Any, labels: Any, *, classes: int) -> Task:
    scaled = StandardScaler().fit_transform(inputs)
    return _trained(nn.Linear(scaled.shape[1], classes), nn.CrossEntropyLoss(), scaled, torch.tensor(labels).long())


def _trained(layer: nn.Linear, loss: nn.Module, inputs: Any, targets: Tensor) -> Task:
    data = TensorDataset(torch.tensor(inputs, dtype=torch.double), targets)
    start = Task(layer.double(), loss, data, weight_decay=DECAY)
    kept = Exact().prepare(Workspace(start, 0, None), layer, start.all_ids)
    assert kept is not None
    *_, last = newton(kept.objective, trained_weights(layer), kept.inverse, 50)
    set_trained_weights(layer, last.weights)
    return start


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def error_of(task: Task, model: Any, gone: int) -> float:
    """How far weights can be from the minimum without a sample, by plain numpy."""
    inputs, targets = (np.delete(part.numpy(), gone, axis=0) for part in task.train_set.tensors)
    weight, bias = model.weight.detach().numpy(), model.bias.detach().numpy()
    outputs = inputs @ weight.T + bias
    if targets.ndim == 2:
        slopes = 2 * (outputs - targets)
    else:
        odds = np.exp(outputs - outputs.max(1, keepdims=True))
        slopes = odds / odds.sum(1, keepdims=True)
        slopes[np.arange(len(targets)), targets] -= 1
    of_weight, of_bias = slopes.T @ inputs / len(inputs) + DECAY * weight, slopes.mean(0) + DECAY * bias
    return float(np.sqrt((of_weight**2).sum() + (of_bias**2).sum())) / DECAY


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--removed", type=int, default=REMOVED, help="of the hardest samples, one at a time")
    parser.add_argument("--only", choices=tuple(SETS), help="one of the sets")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| data | share left, median | largest | certificate / distance, median | counted | below | request, ms |")
    print("|---|---|---|---|---|---|---|")
    for name in (options.only,) if options.only else SETS:
        task = SETS[name]()
        hardest = losses_on(task, task.model, task.all_ids).argsort(descending=True)[: options.removed].tolist()
        shares, ratios, below, times = [], [], 0, []
        unlearner = Unlearner(task).prepare()
        state = unlearner.state_dict()
        for gone in hardest:
            begin = time.perf_counter()
            done = unlearner.forget([gone])
            times.append(1000 * (time.perf_counter() - begin))
            truth = Unlearner(task, Exact(share=1e-15)).forget([gone]).model
            off = error_of(task, truth, gone)
            distance, before = ((flat(one) - flat(truth)).norm() for one in (done.model, task.model))
            shares.append(float((distance + off) / before))
            bound = done.certificate.bound or 0.0
            if shares[-1] > ROUNDING:
                ratios.append(bound / float(distance + off))
            below += bound < float(distance - off)
            unlearner.load_state_dict(state)
            unlearner.prepare()
        middle = f"{np.median(shares):.1e} | {max(shares):.1e} | {np.median(ratios):.2f} | {len(ratios)}"
        print(f"| {name} | {middle} | {below} of {len(hardest)} | {np.median(times):.0f} |", flush=True)


if __name__ == "__main__":
    main()
