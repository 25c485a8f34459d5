"""How much what is found by samples on trial depends on which were drawn: ``python -m experiments.holds``.

The MLP of ``experiments.tasks``, trained until all samples are right, and the CNN after eight epochs, when many are
not. From draw to draw: the length of a Newton step, strength and power of the hold (``excise.unlearning.hold``), and
the strength where retained samples respond in full (``excise.unlearning.full_response``), with samples drawn by their
losses, as the default does, and with equal chances.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from excise import Calibrated, Predicted, Task, Unlearner, fit
from excise._support.sampling import draw_by_loss, draw_proportionally
from excise.networks import small
from experiments.tasks import cifar_cnn, mnist_mlp

Draw = Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor]]


def with_equal_chances(losses: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return draw_proportionally(torch.ones_like(losses), count, generator)


DRAWS: dict[str, Draw] = {"by loss": draw_by_loss, "equal chances": with_equal_chances}


@contextmanager
def drawing(draw: Draw) -> Iterator[None]:
    """Inside, samples on trial are drawn so."""
    places = ("exchangeability", "predicted")
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(patch(f"excise.unlearning.{place}.draw_by_loss", draw))
        yield


def found(task: Task, seed: int) -> tuple[float, float, float, float]:
    """Length, strength, power, and strength in full."""
    length = Unlearner(task, Calibrated(), seed=seed).prepare()._prepared.trials.length().value
    prepared = Unlearner(task, Predicted(), seed=seed).prepare()._prepared
    in_full = float("nan") if prepared.full_hold is None else prepared.full_hold.strength
    return length, prepared.hold.strength, prepared.hold.power, in_full


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a training of eight epochs is not at a minimum
    early = cifar_cnn()
    early = early.with_model(fit(replace(early, model=small.cnn(0)), epochs=8).model)
    print("| network | drawn | length | strength h | power γ | h in full |\n|---|---|---|---|---|---|")
    for network, trained in {"MLP, 30 epochs": mnist_mlp(), "CNN, 8 epochs": early}.items():
        for name, draw in DRAWS.items():
            with drawing(draw):
                every = np.array([found(trained, seed) for seed in range(options.draws)])
            pairs = zip(every.mean(0), every.std(0, ddof=1), strict=True)
            cells = [f"{mean:.2f} ± {sd:.2f}" if np.isfinite(mean) else "–" for mean, sd in pairs]
            print(f"| {network} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
