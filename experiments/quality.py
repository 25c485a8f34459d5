"""How near to retraining: ``python -m experiments.quality`` forgets samples of an MLP and compares it with retraining.

Under construction: the MLP and its four requests so far. Reported are the pooled gaps (0 as good as another retraining,
1 nothing forgotten): nKL, nKLc with fitted temperatures, z of margins; accuracies; seconds as a share of retraining.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from excise import Drift, Task, Unlearner, fit
from excise.gap import Gap, Logits, divergence_gap, margin_gap
from experiments.mnist import load_mnist

SAMPLES, HELD_OUT, EPOCHS, DECAY = 4000, 2000, 30, 1e-3
REQUESTS = ("random", "class", "hardest", "mislabelled")
METHODS: dict[str, dict[str, Any]] = {
    "step": {},
    "step, all parameters": {"selection": "all", "step_size": 1.0},
    "drift, one pass": {"refine": Drift()},
    "drift, three passes": {"refine": Drift.thorough()},
    "drift, three passes, no guard": {"refine": Drift.thorough(), "guard": None},
}


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def logits(model: nn.Module, images: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(images).double().numpy()


def accuracy(scores: Any, labels: Any) -> float:
    return float((scores.argmax(1) == labels).mean())


def request(name: str, labels: Any, losses: Callable[[], Any], rng: np.random.Generator) -> Any:
    """Positions to forget: 1 % of the samples, or 100 of one class."""
    if name == "class":
        return rng.permutation(np.flatnonzero(labels == rng.integers(10)))[:100]
    if name == "hardest":
        return np.argsort(-losses())[: SAMPLES // 100]
    return rng.permutation(SAMPLES)[: SAMPLES // 100]


def one_run(name: str, seed: int, data: Any, retrainings: int) -> dict[str, dict[str, Any]]:
    images, labels, test_images, test_labels = data
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(images))[:SAMPLES]
    held = rng.permutation(len(test_images))[:HELD_OUT]
    x, y = torch.tensor(images[chosen]), labels[chosen].copy()
    ids = None
    if name == "mislabelled":
        ids = request(name, y, lambda: None, rng)
        y[ids] = (y[ids] + rng.integers(1, 10, len(ids))) % 10
    train = TensorDataset(x, torch.tensor(y))
    loss = nn.CrossEntropyLoss(reduction="none")
    fitted = fit(Task(mlp(seed), loss, train, weight_decay=DECAY), epochs=EPOCHS, seed=seed)
    task = Task(fitted.model, loss, train, weight_decay=DECAY)
    if ids is None:
        ids = request(name, y, lambda: task.losses(task.model, task.batch(range(SAMPLES))).detach().numpy(), rng)
    keep = np.setdiff1d(np.arange(SAMPLES), ids)
    begin = time.perf_counter()
    again = [
        fit(Task(mlp(seed * 100 + k + 1), loss, train, weight_decay=DECAY), ids=keep, epochs=EPOCHS, seed=k).model
        for k in range(retrainings)
    ]
    retraining = (time.perf_counter() - begin) / retrainings
    forget_images, held_images = x[torch.tensor(ids)], torch.tensor(test_images[held])

    def seen(model: nn.Module) -> Logits:
        return Logits(logits(model, forget_images), logits(model, held_images))

    original, retrained = seen(task.model), [seen(model) for model in again]
    held_labels = test_labels[held]

    def figures(model: nn.Module, seconds: float) -> dict[str, Any]:
        outputs = seen(model)
        return {
            "nKL": divergence_gap(outputs, original, retrained, calibrated=False),
            "nKLc": divergence_gap(outputs, original, retrained, calibrated=True),
            "z": margin_gap(outputs, original, retrained, y[ids], held_labels),
            "retain": accuracy(logits(model, x[torch.tensor(keep)]), y[keep]),
            "test": accuracy(outputs.held_out, held_labels),
            "seconds": seconds / retraining,
        }

    results = {"original": figures(task.model, 0.0), "retrained": figures(again[0], retraining)}
    for method, options in METHODS.items():
        done = Unlearner(task, **options).forget(ids.tolist())
        results[method] = figures(done.model, done.seconds)
    return results


def pooled(runs: list[dict[str, Any]]) -> str:
    """One row of the table: gaps are summed before they are divided."""
    cells = []
    for key in ("nKL", "nKLc", "z"):
        total = Gap(0.0, 0.0, 0.0)
        for run in runs:
            total = total + run[key]
        cells.append(f"{total.share:.2f}")
    cells += [f"{100 * np.mean([run[key] for run in runs]):.1f}" for key in ("retain", "test", "seconds")]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    parser.add_argument("--retrainings", type=int, default=3)
    parser.add_argument("--requests", nargs="+", choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    options = parser.parse_args()
    torch.set_num_threads(2)
    folder = options.data_dir / "mnist"
    data = (*load_mnist(folder), *load_mnist(folder, "t10k"))
    for name in options.requests:
        print(f"\n### {name}, seeds {options.seeds}, {options.retrainings} retrainings each\n", flush=True)
        print("| method | nKL | nKLc | z | retain % | test % | % of retraining |\n|---|---|---|---|---|---|---|")
        runs = [one_run(name, seed, data, options.retrainings) for seed in options.seeds]
        for method in runs[0]:
            print(f"| {method} | {pooled([run[method] for run in runs])} |", flush=True)


if __name__ == "__main__":
    main()
