"""What would it cost? ``python -m benchmarks.plan_examples`` plans works that are too large to be done here.

ResNet-50 of images of 64 × 64 (``--size 224`` takes about ten times as long), by its configuration and with random
weights, as if it had been trained on the 1,281,167 images of ImageNet for 90 epochs; and a search of columns in a table
of 10⁸ × 10³. All of it is extrapolated from a few batches of each work on this machine, with one thread, in seconds of
the processor, and the tables say from how much. With ``--check`` the same ways are held against works that are small
enough to be done: a pass over some of the images, an epoch of training, and a search in a table of 100,000 × 200.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from excise import Task, fit
from excise.planning import works
from excise.planning.bench import Bench
from excise.planning.messages import prices_here
from excise.planning.planning import WORKS, plan_on
from excise.planning.scaling import Estimate
from excise.planning.searches import Search, plan_search, search
from excise.planning.stopwatch import taken
from excise.planning.table import markdown, search_markdown
from excise.privacy.claims import certified
from excise.training.retraining import fresh

IMAGES, TEST, CLASSES, EPOCHS = 1_281_167, 50_000, 1000, 90
FEW = 4  # images of a work that is measured in part
LEFT_OUT = ("prepare (default)", "request (default)", "request (steps=3)")  # of which even that takes very long
CHECKED = 160  # images of works that are done


class Random(Dataset[tuple[Tensor, int]]):
    """So many images of noise, made when they are read."""

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(place)
        return torch.randn(3, self._size, self._size, generator=generator), place % CLASSES


def imagenet_resnet50(size: int) -> Task:
    """The task."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig.from_dict({"num_labels": CLASSES})).eval()

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).logits, batch[1]

    def retrain(ids: Tensor, seed: int) -> nn.Module:
        return fit(task.with_model(fresh(model, seed)), ids=ids, epochs=1, seed=seed).model

    task = Task(
        model,
        nn.CrossEntropyLoss(),
        Random(IMAGES, size),
        Random(TEST, size),
        weight_decay=1e-4,
        forward=forward,
        retrain=retrain,
    )
    return task


def check(size: int) -> None:
    """Plan works of some hundred images and of a small table from parts, do them, and compare."""
    task = imagenet_resnet50(size)
    few = replace(task, train_set=Random(CHECKED, size), test_set=Random(8, size))

    def epoch(ids: Tensor, seed: int) -> nn.Module:
        return fit(few.with_model(fresh(few.model, seed)), ids=ids, epochs=1, seed=seed).model

    bench = Bench(
        replace(few, retrain=epoch), 1, 1e-6, time.process_time, few=FEW
    )  # no time, so that all is extrapolated
    ids = torch.arange(1, CHECKED)
    pairs: dict[str, tuple[Estimate | Search, Callable[[], object]]] = {
        f"certificate of {CHECKED} images": (works.certificate(bench), lambda: certified(few, few.model, ids)),
        f"an epoch of {CHECKED} images": (works.retraining(bench), lambda: epoch(ids, 0)),
        "search in 100,000 × 200": (plan_search(100_000, 200)[0], lambda: search(100_000, 200, 5)),
    }
    print("| work | planned, s | done, s | off | measured at |\n|---|---|---|---|---|")
    for name, (told, work) in pairs.items():
        done = taken(work, time.process_time).seconds
        print(f"| {name} | {told.seconds:.1f} | {done:.1f} | {told.seconds / done - 1:+.0%} | {told.measured_at:.0%} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the plan of the network")
    parser.add_argument("--size", type=int, default=64, help="of the images")
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--check", action="store_true", help="do what is small enough, and compare")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.check:
        check(options.size)
        return
    if not options.table_only:
        task, prices = imagenet_resnet50(options.size), prices_here()
        bench = Bench(task, 1, options.seconds / WORKS, time.process_time, few=FEW, prices=prices)
        found = plan_on(bench, 3, 64, leave_out=LEFT_OUT, progress=sys.stderr.isatty())
        print(f"ImageNet in {options.size} × {options.size} pixels, ResNet-50. Extrapolated.")
        print(f"A retraining is of one epoch; times {EPOCHS} for a training.\n")
        print(markdown(found), "\n")
    print("A search of columns, five of them chosen. Extrapolated.\n")
    print(search_markdown(plan_search(10**8, 10**3)))


if __name__ == "__main__":
    main()
