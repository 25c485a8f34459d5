"""Which curvature to use: ``python -m experiments.solvers`` draws the cost of a solve against the quality of the step.

Cost is the time of the solve alone, as a multiple of the forward passes of 1,000 copies; quality is nKLc (0 as good as
another retraining, 1 nothing forgotten), pooled over three kinds of requests and the seeds on which settings are fixed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from excise import Unlearner, kfac
from excise.gap import Gap
from experiments.cases import Case, make_case
from experiments.quality import Judge

CACHE = kfac.cache
SOLVERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CG, 8 iterations, 1,000 samples": ({"curvature": "ggn"}, {}),
    "CG, 4 iterations, 400 samples": ({"curvature": "ggn", "iterations": 4, "curvature_samples": 400}, {}),
    "CG, 2 iterations, 200 samples": ({"curvature": "ggn", "iterations": 2, "curvature_samples": 200}, {}),
    "K-FAC, rank 64": ({}, {"exact": 0}),
    "K-FAC, rank 64, 32 rows": ({}, {"exact": 32, "rows": 400}),
    "K-FAC, rank 64, 128 rows": ({}, {}),
}
CHOSEN = "K-FAC, rank 64, 128 rows"


def timed_step(case: Case, options: dict[str, Any], kept: dict[str, Any]) -> tuple[Any, float]:
    """The forgotten model, and the seconds that its solve took."""
    kfac.cache = partial(CACHE, **kept)
    unlearner = Unlearner(case.task, **options).prepare()
    kfac.cache = CACHE
    newton, spent = unlearner._newton, [0.0]
    assert newton is not None

    def timed(*arguments: Any) -> Tensor:
        begin = time.perf_counter()
        found = newton(*arguments)
        spent[0] += time.perf_counter() - begin
        return found

    unlearner._newton = timed
    return unlearner.forget(case.ids.tolist()).model, spent[0]


def forward_seconds(case: Case) -> float:
    images = case.task.train_set.tensors[0][:1000]
    times = []
    with torch.no_grad():
        for _ in range(5):
            begin = time.perf_counter()
            case.task.model(images)
            times.append(time.perf_counter() - begin)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--data-dir", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--kept-in", type=Path, default=Path(".cache") / "quality", help="folder of trained models")
    parser.add_argument("--plot", type=Path, default=Path("docs/images/solvers.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = [
        make_case("mlp", request, seed, retrainings=3, data_dir=options.data_dir, kept_in=options.kept_in)
        for request in ("random", "hardest", "mislabelled")
        for seed in options.seeds
    ]
    points: dict[str, tuple[float, float]] = {}
    print("| solve | nKLc | cost, × forward passes |\n|---|---|---|")
    for name, (how, kept) in SOLVERS.items():
        gaps: list[Gap] = []
        costs: list[float] = []
        for case in cases:
            model, seconds = timed_step(case, how, kept)
            gaps.append(Judge(case).figures(model, 0.0)["nKLc"])
            costs.append(seconds / forward_seconds(case))
        points[name] = float(np.median(costs)), sum(gaps[1:], gaps[0]).share
        print(f"| {name} | {points[name][1]:.3f} | {points[name][0]:.2f} |", flush=True)
    draw(points, options.plot)


def draw(points: dict[str, tuple[float, float]], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, (cost, gap) in points.items():
        axes.scatter(cost, gap, color="#b5442e" if name == CHOSEN else "#2f6f8f", zorder=3)
        below = name == CHOSEN
        axes.annotate(
            name, (cost, gap), xytext=(0, -14 if below else 7), textcoords="offset points", fontsize=8, ha="center"
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.25)
    axes.set_xlabel("cost of the solve, × forward passes of 1,000 copies")
    axes.set_ylabel("nKLc (0: as good as retraining)")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
