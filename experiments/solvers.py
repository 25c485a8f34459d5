"""Which curvature to use: ``python -m experiments.solvers`` draws the cost of a solve against the quality of the step.

Cost is the time of the solve alone, as a multiple of the forward passes of 1,000 copies; quality is nKLc (0 as good as
another retraining, 1 nothing forgotten), pooled over three kinds of requests and the seeds on which settings are fixed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from excise import CG, GGN, Cached, Step, Task, Unlearner
from excise._support.files import write_figure
from excise.curvature import Curvature, InverseCurvature
from excise.datasets.files import default_folder
from excise.evidence.gap import Gap
from excise.slices import Block, Slices
from experiments.cases import Case, make_case
from experiments.quality import Judge

SOLVERS: dict[str, Curvature] = {
    "CG, 8 iterations, 1,000 samples": GGN(samples=1000, solver=CG(8)),
    "CG, 4 iterations, 400 samples": GGN(samples=400, solver=CG(4)),
    "CG, 2 iterations, 200 samples": GGN(samples=200, solver=CG(2)),
    "K-FAC, rank 64": Cached(rank=64, exact=0),
    "K-FAC, rank 64, 32 rows": Cached(rank=64, exact=32, rows=400),
    "K-FAC, rank 64, 128 rows": Cached(rank=64, exact=128),
}
CHOSEN = "K-FAC, rank 64, 128 rows"


@dataclass(frozen=True)
class Timed:
    """Another curvature, with the seconds of every solve."""

    curvature: Curvature
    seconds: list[float] = field(default_factory=list, repr=False)

    knows_slices_only: ClassVar[bool] = True  # of no account here, where a part of the slices is moved

    def count(self, task: Task, model: nn.Module, slices: Slices) -> int:
        """As many as the other."""
        return self.curvature.count(task, model, slices)

    def prepare(
        self, task: Task, model: nn.Module, slices: Slices, ids: Tensor, *, seed: int, all_slices: bool
    ) -> InverseCurvature:
        """What the other prepares, timed."""
        inverse = self.curvature.prepare(task, model, slices, ids, seed=seed, all_slices=all_slices)
        return TimedInverse(inverse, self.seconds)


@dataclass(frozen=True)
class TimedInverse:
    """What ``Timed`` prepares."""

    inverse: InverseCurvature
    seconds: list[float]

    def solve(self, model: nn.Module, block: Block, gradient: Tensor, *, without: Collection[int]) -> Tensor:
        """As the other, with a note of its seconds."""
        begin = time.perf_counter()
        found = self.inverse.solve(model, block, gradient, without=without)
        self.seconds.append(time.perf_counter() - begin)
        return found


def timed_step(case: Case, curvature: Curvature) -> tuple[nn.Module, float]:
    """The forgotten model, and the seconds that its solve took."""
    timed = Timed(curvature)
    done = Unlearner(case.task, Step(curvature=timed)).forget(case.ids.tolist())
    return done.model, sum(timed.seconds)


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
    parser.add_argument("--data-dir", type=Path, default=default_folder())
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
    for name, curvature in SOLVERS.items():
        gaps: list[Gap] = []
        costs: list[float] = []
        for case in cases:
            model, seconds = timed_step(case, curvature)
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
    write_figure(file, figure, dpi=120)


if __name__ == "__main__":
    main()
