"""Data larger than memory: ``python -m benchmarks.large_data`` forgets from 2,000,000 samples in a file of 4 GB.

The file lies in a temporary folder, and is removed afterwards. Each case runs in a process of its own and one thread.
Its memory is what it had at most beyond what it had once torch and excise were imported; pages of the mapped file are
counted as long as they are the process's. Its time, of preparation, request and certificate together, is held against
bare passes: a plain loop that cuts the samples from the file one batch after the other, asks the model, and adds up the
gradient of the loss. There are as many of these as the case has: one for the certificate of a network; for that of a
linear model two readings and three calls of the model, in the same batches, of which the last is differentiated in
double precision; and for method exact, which is not the default here, one such for every time that it goes over what
the layer sees. Seconds of the processor are given besides, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import default_collate

from excise import Task, Unlearner, exact_fit, fit
from excise.privacy import streamed_objective

FEATURES, CLASSES, BATCH = 512, 10, 256
TRAINED_ON = 100_000  # of the samples, from which the model is had before the clock runs
FORGET = list(range(1000, 1010))
CASES = ("default", "step", "linear", "exact")


class Mapped:
    """Samples in a file that is mapped into memory."""

    def __init__(self, folder: Path, name: str) -> None:
        self.inputs = np.load(folder / f"{name}-inputs.npy", mmap_mode="r")
        self.labels = np.load(folder / f"{name}-labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.inputs[place].copy()), int(self.labels[place])

    def __getitems__(self, places: list[int]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.inputs[places]), torch.from_numpy(self.labels[places])


def collate(samples: Any) -> Any:
    """A batch that was cut at once is one."""
    return samples if isinstance(samples, tuple) else default_collate(samples)


def write(folder: Path, name: str, count: int, seed: int, wrong: float = 0.0) -> None:
    """Inputs and labels of so many samples, made in pieces, with a share of labels that are drawn at random.

    Those of the held-out samples have some: so many samples are hardly learned by heart, and of a model that knows
    them no better than others there would be nothing to forget.
    """
    rng = np.random.default_rng(seed)
    rule = np.random.default_rng(7).normal(size=(FEATURES, CLASSES))
    inputs = np.lib.format.open_memmap(folder / f"{name}-inputs.npy", "w+", np.float32, (count, FEATURES))
    labels = np.zeros(count, dtype=np.int64)
    for low in range(0, count, 20_000):
        some = rng.standard_normal((min(20_000, count - low), FEATURES), dtype=np.float32)
        inputs[low : low + len(some)] = some
        drawn = rng.random(len(some)) < wrong
        labels[low : low + len(some)] = np.where(drawn, rng.integers(CLASSES, size=len(some)), (some @ rule).argmax(1))
    inputs.flush()
    np.save(folder / f"{name}-labels.npy", labels)


def network(case: str) -> nn.Module:
    torch.manual_seed(0)
    if is_linear(case):
        return nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def task_of(folder: Path, case: str) -> Task:
    held_out = Mapped(folder, "test")
    train = Mapped(folder, "train")
    return Task(network(case), nn.CrossEntropyLoss(), train, held_out, weight_decay=1e-3, collate=collate)


def train(folder: Path, case: str) -> None:
    """Train the model that is to forget, on some of the samples: that is enough for the clock."""
    task = task_of(folder, case)
    ids = torch.arange(min(TRAINED_ON, len(task.train_set)))
    made = exact_fit(task, ids=ids, tolerance=1e-5) if is_linear(case) else fit(task, ids=ids, epochs=2)
    save_file(made.model.state_dict(), folder / f"{case}.safetensors")


def is_linear(case: str) -> bool:
    return case in ("linear", "exact")


class Clock:
    """Seconds since it was made, of the clock and of the processor."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """So many."""
        return time.perf_counter() - self._wall, time.process_time() - self._processor


def bare_pass(task: Task, case: str) -> tuple[float, float]:
    """Seconds of plain loops over all samples."""
    clock = Clock()
    if case in ("default", "step"):
        _gradient(task, task.model)
        return clock.read()
    if case == "linear":  # what proves that the layer is all of it: with its weights, with others, in other batches
        with torch.no_grad():
            for some in _batches(task):
                task.model(some[0])
                task.model(some[0])
    _gradient(task, copy.deepcopy(task.model).double())
    return clock.read()


def _batches(task: Task) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, labels = task.train_set.inputs, task.train_set.labels
    for low in range(0, len(labels), BATCH):
        yield torch.from_numpy(inputs[low : low + BATCH].copy()), torch.from_numpy(labels[low : low + BATCH])


def _gradient(task: Task, model: nn.Module) -> list[Tensor]:
    weights = list(model.parameters())
    total = [torch.zeros_like(weight) for weight in weights]
    for inputs, labels in _batches(task):
        loss = nn.functional.cross_entropy(model(inputs.to(weights[0].dtype)), labels, reduction="sum")
        for sum_, one in zip(total, torch.autograd.grad(loss, weights), strict=True):
            sum_ += one
    return total


def peak() -> float:
    """GiB that this process had at most; what ``getrusage`` says counts the process that started it too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def count_passes() -> list[int]:
    """How often the exact method goes over what its layer sees, from now on."""
    passes = [0]
    plain = streamed_objective.StreamedObjective.pieces

    def counted(self: streamed_objective.StreamedObjective) -> Any:
        passes[0] += 1
        yield from plain(self)

    streamed_objective.StreamedObjective.pieces = counted  # type: ignore[method-assign]
    return passes


def measure(folder: Path, case: str) -> dict[str, Any]:
    """One case, in this process."""
    torch.set_num_threads(1)
    before = peak()
    task = task_of(folder, case)
    task.model.load_state_dict(load_file(folder / f"{case}.safetensors"))
    passes, clock = count_passes(), Clock()
    how = {"default": "auto", "linear": "auto"}.get(case, case)
    unlearner = Unlearner(task, how).prepare()
    prepared = clock.read()
    done = unlearner.forget(FORGET)
    forgotten = clock.read()
    kind, bound = done.certificate.kind, done.certificate.bound
    ended = clock.read()
    memory = peak() - before
    times = 1 + passes[0] if case == "exact" else 1
    bare = bare_pass(task, case)
    return {
        "case": case,
        "GiB beyond the imports": round(memory, 2),
        "× bare passes": round(ended[0] / (times * bare[0]), 2),
        "the same by seconds of the processor": round(ended[1] / (times * bare[1]), 2),
        "bare passes": times,
        "a bare pass, s": round(bare[0], 1),
        "prepare, s": round(prepared[0], 1),
        "forget, s": round(forgotten[0] - prepared[0], 1),
        "certificate, s": round(ended[0] - forgotten[0], 1),
        "said": done.shortened,
        "kind": kind,
        "bound": bound,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--cases", nargs="+", default=list(CASES[:3]), choices=CASES)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)  # of a case's own process
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.folder is not None:
        print(json.dumps(measure(options.folder, options.cases[0])))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "train", options.samples, 0)
        write(folder, "test", 5000, 1, wrong=0.1)
        size = (folder / "train-inputs.npy").stat().st_size
        print(f"{options.samples:,} samples, a file of {size / 1e9:.1f} GB\n")
        for case in options.cases:
            train(folder, case)
            command = [sys.executable, "-m", "benchmarks.large_data", "--in", name, "--cases", case]
            print(
                json.dumps(
                    json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout),
                    indent=1,
                    ensure_ascii=False,
                )
            )


if __name__ == "__main__":
    main()
