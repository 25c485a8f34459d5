"""Does the default depend on a weight decay that was guessed? ``python -m experiments.weight_decays [--models 40]``.

Models are trained with the right one; the method is told a tenth, ten and fifty times of it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from excise import Auto
from excise.evidence.population import population
from excise.evidence.population.table import markdown
from excise.unlearning import Workspace
from experiments.tasks import mnist_mlp
from experiments.wrapped import Wrapped

TIMES = (0.1, 1.0, 10.0, 50.0)


@dataclass(frozen=True)
class Guessed(Wrapped):
    """A method that is told so many times the right weight decay."""

    times: float = 1.0

    def told(self, workspace: Workspace) -> Workspace:
        """With the wrong weight decay."""
        wrong = replace(workspace.task, weight_decay=self.times * workspace.task.weight_decay)
        return Workspace(wrong, workspace.seed, workspace.n_jobs)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40, help="originals, and as many retrained")
    parser.add_argument("--forget", default="random:1%", help="which samples")
    options = parser.parse_args()
    methods = {f"weight_decay × {times:g}": Guessed(Auto(), times) for times in TIMES}
    print(markdown(population(mnist_mlp(), options.forget, methods, models=options.models)))


if __name__ == "__main__":
    main()
