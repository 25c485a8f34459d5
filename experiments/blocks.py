"""L-FOCI's block or all slices, at the right length: ``python -m experiments.blocks [--models 40]``.

Both steps are as long as makes forgotten samples look like held-out ones. Noise is Gaussian, on the weights that the
step moves, as in the paper: fewer of them are blurred where the block is small.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from excise import AllSlices, Calibrated, PerLayer
from excise.evidence.population import population
from excise.evidence.population.table import markdown
from excise.task.parameters import move, trainable
from excise.unlearning import Applied, Removal, Workspace
from experiments.tasks import mnist_mlp
from experiments.wrapped import Wrapped

NOISES = (0.0, 0.003, 0.01)


@dataclass(frozen=True)
class Blurred(Wrapped):
    """A step on some slices, with noise on these."""

    sigma: float = 0.0

    def apply(self, workspace: Workspace, prepared: Any, model: nn.Module, removal: Removal) -> Applied:
        """Take the step, then blur what it moved."""
        done = super().apply(workspace, prepared, model, removal)
        block, weights = workspace.slices.block(sorted(done.numbers)), trainable(model)
        noise = torch.randn(block.size(weights), generator=torch.Generator().manual_seed(workspace.seed))
        move(model, {name: one.clone() for name, one in weights.items()}, block.scatter(self.sigma * noise, weights))
        return replace(done, losses=None)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40, help="originals, and as many retrained")
    parser.add_argument("--forget", default="random:1%", help="which samples")
    options = parser.parse_args()
    ways = {"all slices": Calibrated(selection=AllSlices()), "L-FOCI": Calibrated(selection=PerLayer())}
    methods = {
        f"{name}, noise {sigma:g}": Blurred(way, sigma) if sigma else way
        for sigma in NOISES
        for name, way in ways.items()
    }
    print(markdown(population(mnist_mlp(), options.forget, methods, models=options.models)))


if __name__ == "__main__":
    main()
