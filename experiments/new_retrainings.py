"""How far does another retraining lie from retrained models by chance? What the audit's lines are drawn by.

    python -m experiments.new_retrainings

Small networks (64-32-10) learn scikit-learn's digits, 1,300 or 300 of them, with and without a few random ones. Of the
retrained models one is taken for the unlearned model, and is held against an original and three, five or eight others:
how many times the largest |z| of these its |z| on retained and test samples is (``moved_times_usual``), and how far
below the lowest of these its mean z on the forgotten samples lies (``overshot_mean_z``). Printed is what 95 of 100
cases stay within. The same seeds give the same table; a minute and a half on one core.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task, fit
from excise.evidence.deviation import Deviations, deviations
from excise.evidence.evaluation import Evaluator
from excise.networks.small import mlp
from excise.task.ids import all_but

Scores = list[tuple[NDArray[np.float64], ...]]

SETTINGS = ((1300, 40), (300, 12))  # digits to learn, and of these to forget
REQUESTS, ORIGINALS, RETRAINED = 5, 3, 20
EPOCHS, LR = 30, 0.1
DRAWS = 400
MODELS = (3, 5, 8)


def scores(learned: int, forgotten: int, request: int) -> tuple[Scores, Scores]:
    """How well originals and retrained models know forgotten, retained and test samples."""
    data = load_digits()
    order = np.random.default_rng(request).permutation(len(data.target))
    inputs = torch.tensor(data.data[order] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target[order])
    train, test = (TensorDataset(inputs[part], labels[part]) for part in (slice(learned), slice(learned, None)))
    task = Task(mlp(0, (64, 32, 10)), nn.CrossEntropyLoss(), train, test, weight_decay=1e-4)
    forget = list(range(forgotten))  # of samples in random order
    evaluator = Evaluator(task, forget)

    def trained(seed: int, ids: torch.Tensor) -> tuple[NDArray[np.float64], ...]:
        start = task.with_model(mlp(seed, (64, 32, 10)))
        model = fit(start, ids=ids, epochs=EPOCHS, lr=LR, seed=seed).model
        return evaluator.predictions(model).scores(numbers=False)

    originals = [trained(seed, torch.arange(learned)) for seed in range(ORIGINALS)]
    return originals, [trained(100 + seed, all_but(forget, learned)) for seed in range(RETRAINED)]


def drawn(originals: Scores, retrained: Scores, models: int, rng: np.random.Generator) -> Deviations:
    """One retraining, held against an original and so many others."""
    new, *others = rng.permutation(RETRAINED)[: models + 1]
    original = originals[rng.integers(ORIGINALS)]
    found = deviations(original, retrained[new], [retrained[other] for other in others])
    assert found is not None, "networks that agree on every sample have no spread"
    return found


def main() -> None:
    print("| learned, forgotten | retrained models | times the usual abs(z), others | z below the lowest, forgotten |")
    print("|---|---|---|---|")
    for learned, forgotten in SETTINGS:
        requests = [scores(learned, forgotten, request) for request in range(REQUESTS)]
        for models in MODELS:
            rng = np.random.default_rng(models)
            found = [drawn(*request, models, rng) for request in requests for _ in range(DRAWS)]
            times = [one.beyond_usual for each in found for one in (each.retain, each.test)]
            signed = [each.forget_signed for each in found]
            below = [min(one.original, *one.retrained) - one.unlearned for one in signed]
            most, lowest = np.quantile(times, 0.95), np.quantile(below, 0.95)
            print(f"| {learned}, {forgotten} | {models} | {most:.2f} | {lowest:.2f} |")


if __name__ == "__main__":
    main()
