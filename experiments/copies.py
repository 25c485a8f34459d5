"""Is an image forgotten, or only its very pixels? Mean margins of altered copies, by ``python -m experiments.copies``.

Models are those of ``excise population --task experiments.tasks:cifar_cnn --forget random:1%``, read where that has
made them: originals, the same after the default method, and retrained ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from excise import Unlearner
from excise.curvature.margins import margin_of
from excise.evidence.population.running import RETRAINED, plan
from excise.task.requests import parse_request
from excise.training.retraining import KEPT_IN, SEEDS, retrain, train_anew
from experiments.quality import alterations
from experiments.tasks import cifar_cnn


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=4, help="originals, and as many retrained")
    parser.add_argument("--forget", default="random:1%", help="which samples")
    options = parser.parse_args()
    task, cache = cifar_cnn(), Path(KEPT_IN).expanduser()
    ids = list(parse_request(options.forget, task, seed=0).ids)
    used = plan(task, ids, {}, models=1, seed=0, folder=cache).task  # with the half of the test samples for methods
    images, labels = (part[torch.tensor(ids)] for part in task.train_set.tensors)
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(options.models):
        original = train_anew(task, seed=SEEDS + number, cache=cache).model
        models = {
            "original": original,
            "unlearned": Unlearner(replace(used, model=original), seed=SEEDS + number).forget(ids).model,
            "retrained": retrain(task, ids, seed=RETRAINED + SEEDS + number, cache=cache).model,
        }
        for copy, altered in alterations(images).items():
            for name, model in models.items():
                found.setdefault((copy, name), []).append(_mean_margin(model, altered, labels))
    print("| copies | original | unlearned | retrained |\n|---|---|---|---|")
    for copy in alterations(images):
        cells = [f"{np.mean(found[copy, name]):.1f}" for name in ("original", "unlearned", "retrained")]
        print(f"| {copy} | {' | '.join(cells)} |")


def _mean_margin(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float(margin_of(model.eval()(images), labels).mean())


if __name__ == "__main__":
    main()
