"""What the default method costs, as shares of one retraining in the same run: ``python -m benchmarks.default_method``.

One thread; logistic regression and the MLP of ``experiments.tasks`` on 4,000 MNIST images, with ``--cnn`` the CNN on as
many of CIFAR-10. Medians over requests. The first request that asks for another method than the usual one pays for its
preparation too.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from excise import Task, Unlearner
from excise.task.requests import parse_request
from experiments.tasks import cifar_cnn, mnist_logistic, mnist_mlp

REPEATS = 3


def _retraining(task: Task) -> float:
    """Seconds of one."""
    assert task.retrain is not None
    began = time.perf_counter()
    task.retrain(task.all_ids, 1)
    return time.perf_counter() - began


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cnn", action="store_true", help="the CNN too, which takes a minute to train")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | request | method | preparation | request | of seconds |\n|---|---|---|---|---|---|")
    networks = {"logistic": mnist_logistic, "MLP": mnist_mlp} | ({"CNN": cifar_cnn} if options.cnn else {})
    for name, make in networks.items():
        task = make()
        training = statistics.median(_retraining(task) for _ in range(REPEATS))
        for spec in ("random:1%", "class:3:100", "hardest:40", "class:3"):
            ids = list(parse_request(spec, task, seed=0).ids)
            prepared, taken, said = [], [], ""
            for seed in range(REPEATS):
                began = time.perf_counter()
                unlearner = Unlearner(task, seed=seed).prepare()
                prepared.append(time.perf_counter() - began)
                done = unlearner.forget(ids)
                taken.append(done.seconds)
                said = done.shortened.removeprefix("method ").partition(" ")[0]
            shares = [f"{statistics.median(some) / training:.1%}" for some in (prepared, taken)]
            print(f"| {name} | {spec} | {said} | {' | '.join(shares)} | {training:.2f} |", flush=True)


if __name__ == "__main__":
    main()
